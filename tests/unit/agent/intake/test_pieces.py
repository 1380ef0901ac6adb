"""The result is the same wherever the rows of one look are cut."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import pytest
from by_hand import MS, Program, accounts, adds_up, agent_folder, table

from otel_mlperf import names
from otel_mlperf.agent.intake import event_queue, pieces
from otel_mlperf.agent.intake.pieces import cut_rows
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.journal.journal_reader import OPEN_TYPE
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.journal.ring_scan import ROW_TYPE

ADDED_UP = ("count", "sum_ns", "self_ns")


class Recorded:
    """A run of nested sections, steps, other threads, errors and collections, by chance."""

    def __init__(self, program: Program, seed: int) -> None:
        self.program, self.chance = program, random.Random(seed)
        self.at = iter(range(1, 1 << 30, 2))
        for _ in range(3):
            begin, epoch = next(self.at), next(program._ids)
            for _ in range(4):
                self.step(epoch)
            self.sections(1, epoch, program.run, 11)
            program.section("epoch", begin, next(self.at), span=epoch, category=names.EPOCH)
            self.sections(1, program.run, program.run, 12)
        end = next(self.at) * MS
        program.journal.put(
            0, end, program.run, 0, program.run, 11, program.name("run", "run", ""), 1
        )
        program.sections += 1
        program.journal.say(Word.END_TIME, end)
        program.journal.close()

    def step(self, parent: int) -> None:
        begin = next(self.at)
        span = self.program.begin_step(begin, parent=parent)
        self.sections(2, span, span, 11)
        if self.chance.random() < 0.5:
            self.sections(3, span, span, 12)
        self.program.end_step(span, begin, next(self.at))

    def sections(self, depth: int, parent: int, root: int, track: int) -> None:
        for _ in range(self.chance.randrange(4) if depth else 5):
            self.section(depth, parent, root, track)

    def section(self, depth: int, parent: int, root: int, track: int) -> None:
        chance, begin, span = self.chance, next(self.at), next(self.program._ids)
        if depth < 4:
            self.sections(depth + 1, span, root, track)
        if chance.random() < 0.2:
            pause = next(self.at)
            self.program.pause(pause, pause + 0.5, track=track)
        payload = {"a": {"depth": depth}} if chance.random() < 0.5 else None
        self.program.section(
            f"s{chance.randrange(3)}", begin, next(self.at), span=span, parent=parent, root=root,
            track=track, error=chance.random() < 0.1, payload=payload,
        )  # fmt: skip


def told(tmp_path, seed: int) -> dict:
    """What an agent makes of all of it at one look."""
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    journals, run_folder = folder / "journals", folder / "digits-0123"
    journals.mkdir(parents=True)
    run_folder.mkdir()
    program = Program(journals, run_folder)
    Recorded(program, seed)
    options = Options(policy=Policy(trace_every=1), readings="none")
    tail = Tail(journals, {program.journal.path: program.journal.buffer})
    agent = Agent(agent_folder(program.meta), tail, options)
    agent.run()
    account = accounts(run_folder)["spans"]["store"]
    assert adds_up(account)
    assert account["created"] == program.sections
    program.journal.release()
    (rank,) = agent._state.ranks.values()
    series = {
        key: (one.buckets.counts, one.buckets.count) if one.buckets else round(one.value, 9)
        for key, one in rank.series.items()
    }
    spans = [span for span in table(run_folder, "spans") if span["kind"] != "segment"]
    return {
        "steps": table(run_folder, "steps"),
        "sections": added_up(table(run_folder, "sections")),
        "spans": sorted(spans, key=lambda span: span["span_id"]),
        "account": account,
        "series": series,
        "outcome": table(run_folder, "processes")[-1],
    }


def added_up(rows: list[dict]) -> dict:
    """Rows of sections, those of the same place as one: several marks give several."""
    by_place: dict = defaultdict(lambda: defaultdict(int))
    for row in rows:
        place = tuple(row[key] for key in ("phase", "n", "name", "parent", "path", "beside"))
        one = by_place[place]
        for key in ADDED_UP:
            one[key] += row[key]
        one["max_ns"] = max(one["max_ns"], row["max_ns"])
        one["min_ns"] = min(one["min_ns"] or row["min_ns"], row["min_ns"])
    return {place: dict(one) for place, one in by_place.items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_any_cut_comes_to_the_same(tmp_path, monkeypatch, seed):
    """Rows, self times, histograms, spans and the account are those of a look in one piece."""
    whole = told(tmp_path, seed)
    for most in (1, 2, 3, 7, 20, 100):
        monkeypatch.setattr(pieces, "MAX_ROWS", most)
        monkeypatch.setattr(event_queue, "MARK_ROWS", most)
        assert told(tmp_path, seed) == whole, most


def rows_of(*sections: tuple[int, int]) -> np.ndarray:
    """Rows of sections with those ids and parents, in slots from 1 on."""
    rows = np.zeros(len(sections), ROW_TYPE)
    rows["span"], rows["parent"] = zip(*sections, strict=True)
    rows["seq"] = range(1, len(sections) + 1)
    rows["start"], rows["end"], rows["flags"] = MS, 2 * MS, Kind.SECTION
    return rows


def test_only_what_is_around_is_told(monkeypatch):
    """Sections that merely follow are none of it, however many; what is around those around is."""
    monkeypatch.setattr(pieces, "MAX_ROWS", 2)
    rows = rows_of((5, 4), (6, 1), (7, 1), (4, 3), (8, 1), (3, 1), (9, 1))
    cut = list(cut_rows(rows, 1, 8, []))

    around = [sorted(np.frombuffer(one.around, OPEN_TYPE)["span"].tolist()) for one in cut]
    assert around == [[3, 4], [3], [], []]


def test_each_piece_says_where_a_look_behind_it_starts(monkeypatch):
    """A row that came late is in its place; what a later piece has is a hole until then."""
    monkeypatch.setattr(pieces, "MAX_ROWS", 2)
    rows = rows_of((11, 1), (12, 1), (13, 1), (14, 1), (15, 1))
    rows["seq"] = [3, 10, 12, 13, 11]
    cut = list(cut_rows(rows, 10, 16, [5, 14]))

    assert [(one.next, one.holes) for one in cut] == [
        (11, [5]), (14, [5, 11]), (16, [5, 14]),
    ]  # fmt: skip
