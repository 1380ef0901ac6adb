"""Is a trace kept within its budget, with no time lost?"""

from __future__ import annotations

import json

import pytest
from by_hand import accounts, adds_up, table

from otel_mlperf import names
from otel_mlperf.agent.model.sampling import Policy


@pytest.mark.parametrize("budget", [50, 200])
def test_over_budget_is_rolled_up_without_losing_time(
    program, agent_of, run_folder, budget
) -> None:
    """A step of a thousand sections keeps the longest; roll-ups hold count and time of the rest."""
    step = program.begin_step(0)
    for i in range(1000):
        program.section("op", i, i + 0.5 + (i % 7) / 20, parent=step, root=step)
    program.end_step(step, 0, 1001)
    program.stop(1100)
    agent_of(program, policy=Policy(spans_per_rank=budget)).run()

    spans = [s for s in table(run_folder, "spans") if s["name"] == "op"]
    assert len(spans) <= budget
    rolled = [json.loads(s["attributes"]) for s in spans if s["kind"] == "rollup"]
    plain = [s["end_ns"] - s["start_ns"] for s in spans if s["kind"] == "section"]
    assert sum(r["otel_mlperf.rolled_up.count"] for r in rolled) + len(plain) == 1000
    total = sum(int((0.5 + (i % 7) / 20) * 1e6) for i in range(1000))
    found = sum(plain) + sum(r["otel_mlperf.rolled_up.sum"] for r in rolled)
    assert found == pytest.approx(total, abs=1000)
    assert adds_up(accounts(run_folder)["spans"]["store"])


def test_late_rows_are_rolled_up_apart(program, agent_of, run_folder) -> None:
    """What other threads add to a step that has ended is a roll-up of its own, with its own id."""
    agent = agent_of(program, policy=Policy(spans_per_rank=4))
    step = program.begin_step(0)
    for at in range(10):
        program.section("read", at, at + 1, parent=step, root=step)
    program.end_step(step, 0, 20)
    agent.tick()
    agent.mark()
    for at in range(10):
        program.section("read", at, at + 1, parent=step, root=step, track=99)
    program.stop(30)
    agent.run()

    spans = table(run_folder, "spans")
    rolled = [json.loads(s["attributes"])[names.ROLLED_UP] for s in spans if s["kind"] == "rollup"]
    assert len(rolled) == 2
    assert sum(rolled) + sum(s["name"] == "read" and s["kind"] == "section" for s in spans) == 20
    assert len({s["span_id"] for s in spans}) == len(spans)
