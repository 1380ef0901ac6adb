"""A running run's progress and remaining time are reported."""

from __future__ import annotations

from run_folders import MS, START, RunFolderBuilder
from summaries import summary_of

from otel_mlperf import names
from otel_mlperf.report.summary_table import render_summary


def training(tmp_path, end=0):
    """Twenty of a hundred steps, 50 ms from one to the next."""
    run = RunFolderBuilder(tmp_path)
    for n in range(20):
        run.step(n, n * 50 * MS, {"forward": 50 * MS})
    run.process(end, outcome="finished" if end else "running")
    run.row("readings", rank=0, restart=0, name=names.STEPS_EXPECTED.name, labels="{}",
            time_ns=START, value=100.0)  # fmt: skip
    return run


def test_of_a_running_one(tmp_path):
    """Eighty steps that take as long as the last ones did."""
    summary = summary_of(training(tmp_path))

    assert (summary.progress.step, summary.progress.expected) == (19, 100)
    assert (summary.progress.share, summary.progress.left_ns) == (0.2, 80 * 50 * MS)
    assert "progress  20 of 100 steps (20 %), 4.00 s left" in render_summary(summary)


def test_of_one_that_has_ended_there_is_none(tmp_path):
    """However many steps it made."""
    assert summary_of(training(tmp_path, 1000 * MS)).progress is None
