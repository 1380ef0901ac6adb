"""A trace is kept within its budget, with no time lost."""

from __future__ import annotations

import json

import pytest
from by_hand import accounts, adds_up, table
from journal_model import META

from otel_mlperf import names
from otel_mlperf.agent.derivation.rollup import within_budget
from otel_mlperf.agent.model.journal_state import JournalState
from otel_mlperf.agent.model.kept_span import SampledSpan
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
    agent_of(program, policy=Policy(max_spans_per_rank=budget)).run()

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
    agent = agent_of(program, policy=Policy(max_spans_per_rank=4))
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


class Id(int):
    """A span's id that counts how often one is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        Id.lookups += 1
        return super().__hash__()


def inside(span: Id, parent: int) -> SampledSpan:
    """A span in another, which takes longer."""
    journal = JournalState(META)
    return SampledSpan(
        journal=journal, span=span, parent=parent, trace=b"", start=span, end=1_000_000 - span,
        name=1, track=1, root=0, reason="",
    )  # fmt: skip


@pytest.mark.fault("F56")
@pytest.mark.parametrize("depth", [2000, 4000])
def test_deep_recursion_costs_each_span_the_same(depth: int) -> None:
    """However many are around it, a span is looked up some times; all count, none is an orphan."""
    ids = [Id(n) for n in range(depth)]
    spans = [inside(ids[n], ids[n - 1] if n else -1) for n in reversed(range(depth))]
    Id.lookups = 0
    sent = within_budget(spans, 1000)

    assert Id.lookups < 25 * depth
    assert len(sent) <= 1000
    assert sum(span.rolled_up or 1 for span in sent) == depth
    assert {span.parent for span in sent} <= {span.span for span in sent} | {-1}


@pytest.mark.fault("F94")
def test_spans_that_name_each_other_are_rolled_up() -> None:
    """Rows that were written over may be each other's parents: each counts, and nothing hangs."""
    ids = [Id(n) for n in range(9)]
    spans = [inside(ids[n], ids[n - 1]) for n in range(9)]
    sent = within_budget(spans, 4)

    assert sum(span.rolled_up or 1 for span in sent) == 9
