"""Figures of calls cover all calls, however they were written."""

from __future__ import annotations

import itertools
import json
import statistics

import numpy as np
import pytest
from run_folders import MS, RunFolderBuilder, S
from summaries import summary_of

from otel_mlperf import names
from otel_mlperf.analysis.summary.summary import summarize
from otel_mlperf.errors import NoSuchPhase
from otel_mlperf.otlp.histogram import ExponentialBuckets
from otel_mlperf.report.summary_table import render_summary
from otel_mlperf.store.run_folders import read_run


def part(run, values_ns, name="predict", category=names.REQUEST, **place):
    """What one flush says of calls that took so long."""
    buckets = ExponentialBuckets()
    buckets.record(np.array(values_ns) / 1e9)
    bound_s = place.get("bound_s")
    within = sum(value <= bound_s * 1e9 for value in values_ns) if bound_s else 0
    run.row("durations", **{
        "rank": 0, "restart": 0, "phase": "", "name": name, "category": category, "path": name,
        "beside": False, "in_step": False, "bound_s": bound_s, "count": len(values_ns),
        "errors": 0, "within": within, "sum_ns": sum(values_ns), "min_ns": min(values_ns),
        "max_ns": max(values_ns), "spread": float(statistics.pvariance(values_ns)) * len(values_ns),
        "scale": buckets.scale, "zeros": buckets.zero_count, "first_bucket": buckets.offset,
        "counts": json.dumps(buckets.counts),
    } | place)  # fmt: skip


@pytest.fixture
def run(tmp_path):
    made = RunFolderBuilder(tmp_path / "runs")
    made.process(10 * S)
    return made


def test_parts_of_ranks_and_flushes_add_up(run):
    """All figures but the quantiles are exact; those are within the error that is said."""
    parts = [[5 * MS, 7 * MS, 9 * MS], [300 * MS], [3 * MS + 1] * 96]
    for rank, values in enumerate(parts):
        part(run, values, rank=rank % 2, beside=rank == 1, bound_s=0.007)

    (calls,) = summary_of(run).calls
    values = sorted(itertools.chain(*parts))
    assert (calls.count, calls.sum_ns, calls.within) == (100, sum(values), 98)
    assert (calls.min_ns, calls.max_ns, calls.mean_ns) == (
        values[0], values[-1], statistics.fmean(values)
    )  # fmt: skip
    assert calls.deviation_ns == pytest.approx(statistics.pstdev(values), rel=1e-9)
    assert calls.p50_ns == pytest.approx(values[49], rel=calls.error_ratio)
    assert calls.p99_ns == pytest.approx(values[98], rel=calls.error_ratio)
    assert calls.within_share == 0.98


def test_table_of_requests(run, tmp_path):
    """Requests stand in every summary, other sections where they are asked for."""
    part(run, [20 * MS] * 99 + [400 * MS], bound_s=0.05, errors=1)
    part(run, [MS, 3 * MS], name="load", category="other")
    summary = summary_of(run)

    lines = render_summary(summary).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("  request"))
    words = [" ".join(line.split()) for line in lines]
    assert words[at] == "request calls mean p50 p95 p99 max within"
    assert words[at + 1] == "predict 100 23.8 ms 20.0 ms 20.2 ms 20.3 ms 400 ms 99.00 %"
    assert "predict within 50.0 ms · 1 failed · p50, p95, p99 are accurate to" in lines[at + 2]
    assert not any("load" in line for line in lines)
    every = render_summary(summary, calls=True).splitlines()
    (load,) = (line for line in every if line.split()[:1] == ["load"])
    assert load.split()[1:8] == ["2", "2.00", "ms", "1.00", "ms", "1.00", "ms"]


def test_phase(run):
    """The figures of the steps that are asked for, of requests alone, or which ones there are."""
    part(run, [20 * MS] * 3)
    for phase in ("train", "validate"):
        part(run, [5 * MS], "forward", "forward", phase=phase, path="", in_step=True)
    for n in range(3):
        run.step(n, n * 30 * MS, {"forward": 10 * MS})
        run.step(n, n * 30 * MS + 10 * MS, {"forward": 5 * MS}, phase="validate")
    folder = read_run(run.write())

    assert summarize(folder).steps.mean_ns == 10 * MS
    validated = summarize(folder, phase="eval")
    assert validated.steps.mean_ns == 5 * MS
    assert [(call.name, call.phase) for call in validated.calls] == [("forward", "validate")]
    requests = summarize(folder, phase="request")
    assert (requests.steps, [call.name for call in requests.calls]) == (None, ["predict"])
    assert "  request" in render_summary(requests)
    with pytest.raises(NoSuchPhase, match="the run has phases train, validate, request"):
        summarize(folder, phase="test")
