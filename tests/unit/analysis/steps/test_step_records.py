"""A step of thousands of ranks is read with a few queries."""

from __future__ import annotations

import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf.analysis.steps.step_records import StepRows, read_spans
from otel_mlperf.store.table_reader import Store


class CountingStore(Store):
    """Says how often it was asked."""

    questions = 0

    def _answer(self, sql, values):
        self.questions += 1
        return super()._answer(sql, values)


@pytest.fixture
def asked(tmp_path):
    """What is read of a step of so many ranks, each with a checkpoint inside; and how often."""

    def ask(ranks: int):
        run = RunFolderBuilder(tmp_path, run_id=f"{ranks:016x}", name=f"of-{ranks}")
        for rank in range(ranks):
            run.step(3, 0, {"forward": MS}, rank=rank, kept="first", end_ns=START + 9 * MS)
            root = run.span(3, "train.step", 0, 9 * MS, rank=rank)
            run.span(3, "forward", 0, MS, rank=rank, parent_id=root, root_id=root)
            outside = {"trace_id": "f" * 32, "rank": rank}
            run.span(None, "checkpoint", MS, MS, **outside)
            run.mark("inside", MS, 3, rank=rank)
        run.process(S)
        store = CountingStore(run.write())
        steps = run.steps
        rows, spans = StepRows(store, steps), read_spans(store, steps, operators=True)
        return rows, rows.outside(range(ranks)), spans, store.questions

    return ask


def test_more_ranks_are_no_more_questions(asked):
    """At 4,096 ranks a question of each would take minutes."""
    *_, of_few = asked(2)
    *_, of_many = asked(40)

    assert of_few == of_many


def test_each_rank_has_its_own(asked):
    """Sections, marks, spans, and what of other traces lay inside."""
    rows, outside, spans, _ = asked(3)

    for rank in range(3):
        assert [name for name, *_ in rows.sections[rank]] == ["forward"]
        assert rows.marks[rank] == [("inside", MS)]
        assert outside[rank] == [("checkpoint",)]
        assert [(span.name, span.depth) for span in spans[rank]] == [
            ("train.step", 0),
            ("forward", 1),
        ]
