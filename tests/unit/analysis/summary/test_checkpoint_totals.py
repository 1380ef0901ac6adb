"""The bytes of all checkpoints and watched files are summed, and their rates with them."""

from __future__ import annotations

import json

from run_folders import START, RunFolderBuilder, S
from summaries import summary_of

from otel_mlperf import names
from otel_mlperf.report.summary_table import render_summary


def save(run, direction, totals, rank=0, restart=0):
    """Readings of what a process has counted so far, bytes and seconds, a second apart."""
    for at, (size, spent_s) in enumerate(totals):
        for metric, value in ((names.CHECKPOINT_IO, size), (names.CHECKPOINT_IO_TIME, spent_s)):
            run.row(
                "readings", rank=rank, restart=restart, name=metric.name,
                labels=json.dumps({names.CHECKPOINT_DIRECTION: direction}),
                time_ns=START + at * S, value=float(value),
            )  # fmt: skip


def test_bytes_are_the_sum_over_ranks_and_restarts(tmp_path):
    """Written and read apart; the rate is what one rank saw."""
    run = RunFolderBuilder(tmp_path)
    save(run, "write", [(100, 0.5), (300, 2.0)])
    save(run, "write", [(500, 3.0)], rank=1)
    save(run, "write", [(200, 5.0)], restart=1)
    save(run, "read", [(50, 0.1)], restart=1)
    save(run, "read", [(0, 0)])

    told = [
        (one.direction, one.bytes, one.time_ns, one.bytes_per_s)
        for one in summary_of(run).checkpoints
    ]

    assert told == [("write", 1000, 10e9, 100.0), ("read", 50, 0.1e9, 500.0)]


def test_files_that_were_watched(tmp_path):
    """By themselves: a checkpoint is no file, and the text has a line for each direction."""
    run = RunFolderBuilder(tmp_path)
    run.process(end=10 * S)
    for metric, value in ((names.FILE_IO, 3e6), (names.FILE_IO_TIME, 2.0)):
        run.row(
            "readings", rank=0, restart=0, name=metric.name,
            labels=json.dumps({names.DISK_DIRECTION: "read"}), time_ns=START, value=value,
        )  # fmt: skip
    summary = summary_of(run)

    assert summary.checkpoints == []
    assert [(one.direction, one.bytes, one.time_ns) for one in summary.files] == [
        ("read", 3_000_000, 2e9)
    ]
    assert "files     read 3.00 MB at 1.50 MB/s\n" in render_summary(summary)
