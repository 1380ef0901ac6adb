"""Every row counts once, for any timing of ranks and agent, and any cut into parts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from by_hand import Program, accounts, adds_up, agent_folder, table

from otel_mlperf.agent.intake import event_queue, pieces
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import read_options

ACTS = {"step": 56, "begin": 6, "stop": 10, "spill": 14, "tick": 7, "mark": 5, "kill": 2}
"""What happens next, and how often of a hundred times."""


class Rank:
    """A rank that makes steps of six milliseconds."""

    def __init__(self, program: Program) -> None:
        self.program, self.steps, self.is_over = program, 0, False
        self._now_ms, self._open = 0.0, None

    def begin(self) -> None:
        if self._open is None:
            self._open = self.program.begin_step(self._now_ms), self._now_ms
            self._now_ms += 1

    def step(self, count: int) -> None:
        self._end_open()
        for _ in range(count):
            self.program.step(self._now_ms, 5)
            self._now_ms += 6
        self.steps += count

    def stop(self) -> None:
        if not self.is_over:
            self._end_open()
            self.program.stop(self._now_ms + 1)
            self.is_over = True

    def _end_open(self) -> None:
        if self._open is not None:
            span, began_ms = self._open
            self.program.end_step(span, began_ms, self._now_ms)
            self._now_ms, self.steps, self._open = self._now_ms + 1, self.steps + 1, None


def act(rank: Rank, what: str, by_chance: random.Random) -> None:
    """What a rank does, if it is that which happens, and the rank goes on."""
    match what:
        case "step" if not rank.is_over:
            rank.step(by_chance.choice([1, 5, 40, 200]))
        case "begin" if not rank.is_over:
            rank.begin()
        case "stop":
            rank.stop()


def make_agent(journals: Path, ranks: list[Rank]) -> Agent:
    """One that finds what an agent before it has left."""
    own = {rank.program.journal.path: rank.program.journal.buffer for rank in ranks}
    there = {path: buffer for path, buffer in own.items() if Path(path).exists()}
    options = read_options({"OTEL_MLPERF_TRACE_EVERY": "1"})
    return Agent(agent_folder(ranks[0].program.meta), Tail(journals, there), options)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
def test_each_row_of_each_rank_counts_once(seed, journals, run_folder, monkeypatch) -> None:
    """Ranks step and end, agents look, mark, make room and are replaced, in any order."""
    by_chance = random.Random(seed)
    at_once = by_chance.choice([20, 50, 200, 8192])
    monkeypatch.setattr(event_queue, "MARK_ROWS", at_once)
    monkeypatch.setattr(pieces, "MAX_ROWS", at_once)
    count = by_chance.randint(1, 6)
    ranks = [Rank(Program(journals, run_folder, number, count)) for number in range(count)]
    agent = make_agent(journals, ranks)

    for _ in range(by_chance.randint(5, 60)):
        rank = by_chance.choice(ranks)
        what = by_chance.choices([*ACTS], [*ACTS.values()])[0]
        act(rank, what, by_chance)
        match what:
            case "spill":
                agent._queue.spill()
            case "tick":
                agent.tick()
            case "mark":
                agent.mark()
            case "kill":
                agent._stop()
                agent._close()
                agent = make_agent(journals, ranks)
    for rank in ranks:
        rank.stop()
    agent.run()

    steps = sorted((row["rank"], row["n"]) for row in table(run_folder, "steps"))
    assert steps == [(n, i) for n, rank in enumerate(ranks) for i in range(rank.steps)]
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == sum(rank.program.sections for rank in ranks)
    assert adds_up(account)
    outcomes = [row["outcome"] for row in table(run_folder, "processes")]
    assert outcomes.count("finished") == count
