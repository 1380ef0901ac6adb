"""The points of a run that its program marked are known."""

from __future__ import annotations

from run_folders import MS, START, digits
from summaries import summary_of


def test_marks_in_the_order_of_their_times(tmp_path):
    """With their step, and how long after the start of the run they were set, on every rank."""
    run = digits(tmp_path)
    run.mark("late", 900 * MS, 9, rank=1)
    run.mark("early", 500 * MS, 3, phase="validate")

    early, late = summary_of(run).marks

    assert (early.name, early.rank, early.phase, early.number) == ("early", 0, "validate", 3)
    assert (early.time_ns, early.after_ns) == (START + 500 * MS, 500 * MS)
    assert (late.name, late.rank, late.after_ns) == ("late", 1, 900 * MS)


def test_a_run_without_marks_has_none(tmp_path):
    """As one of a version that did not store them."""
    assert summary_of(digits(tmp_path)).marks == []
