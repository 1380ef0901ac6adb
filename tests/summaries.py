"""Summary of a run folder that a test builds, and its text."""

from __future__ import annotations

import re

from msgspec.structs import replace
from run_folders import MS

from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.report.summary_table import render_summary
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.terminal_lines import columns


def summary_of(run):
    """The summary of a folder that is being built."""
    return summarize(read_run(run.write()))


def rows_of(summary, *, beside=False):
    """Name and mean of each row, in milliseconds."""
    return [
        (row.name, round(row.mean_ns / MS, 6)) for row in summary.steps.rows if row.beside is beside
    ]


def train(run, durations_ms, **fields):
    """Steps of one section each, back to back."""
    at = 0
    for n, spent in enumerate(durations_ms):
        run.step(n, at, {"forward": int(spent * MS)}, **fields)
        at += int(spent * MS)


def rendered(run, monkeypatch, missing=(), **options):
    """The text for a folder that is being built, seen from the folder above it."""
    path = run.write()
    monkeypatch.chdir(path.parent.parent)
    summary = replace(summarize(read_run(path)), missing=[*missing])
    text = render_summary(summary, **options)
    plain = re.sub(r"\x1b\[\d+m", "", text)
    # A path that is longer than a line stays whole: it is there to be copied.
    lines = [line for line in plain.splitlines() if "stored in" not in line]
    assert all(columns(line) <= options.get("width", 80) for line in lines), plain
    return text
