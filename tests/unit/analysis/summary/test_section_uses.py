"""The sums of what sections used are exact, however they were written."""

from __future__ import annotations

import json
import statistics

import pytest
from run_folders import START, RunFolderBuilder, S
from summaries import summary_of

from otel_mlperf import names
from otel_mlperf.report.summary_table import render_summary

CPU = names.CPU_NS.key


def part(run, values, name="forward", measure=CPU, **place):
    """What one flush says of calls that used so much."""
    run.row("resources", **{
        "rank": 0, "restart": 0, "phase": "train", "name": name, "category": "forward",
        "path": "", "beside": False, "in_step": True, "measure": measure, "count": len(values),
        "total": sum(values), "least": min(values), "most": max(values),
        "spread": statistics.pvariance(values) * len(values),
    } | place)  # fmt: skip


@pytest.fixture
def run(tmp_path):
    made = RunFolderBuilder(tmp_path / "runs")
    made.process(10 * S)
    return made


def test_parts_of_ranks_and_flushes_add_up(run):
    """Count, total, mean, extremes and variance are those of all calls together."""
    parts = [[5, 7, 9], [1_000_000], [3, 3, 3, 4]]
    for rank, values in enumerate(parts):
        part(run, values, rank=rank % 2)

    (use,) = summary_of(run).used
    values = [*parts[0], *parts[1], *parts[2]]
    figures = use.figures[CPU]
    assert (use.calls, figures.count, figures.total) == (8, 8, sum(values))
    assert (figures.least, figures.most) == (3, 1_000_000)
    assert figures.mean == statistics.fmean(values)
    assert figures.variance == pytest.approx(statistics.pvariance(values), rel=1e-12)


def test_by_section_and_place(run):
    """Each place of a name is its own, what used most CPU first; what nobody knew is absent."""
    part(run, [1], name="load", path="load", in_step=False)
    part(run, [5], name="load", path="outer/load", in_step=False)
    part(run, [9, 9], name="data.load")
    part(run, [7], name="waits", measure=names.MEMORY_GROWTH.key)

    uses = summary_of(run).used
    assert [(use.name, use.path, use.calls, list(use.figures)) for use in uses] == [
        ("data wait", "", 2, [CPU]),
        ("load", "outer/load", 1, [CPU]),
        ("load", "load", 1, [CPU]),
        ("waits", "", 1, [names.MEMORY_GROWTH.key]),
    ]


def test_of_the_processes(run):
    """CPUs are those of the processes that told, over their lives; the peak is the highest."""
    run.process(10 * S, rank=1)
    run.process(30 * S, rank=2)
    for rank, cpu_s, peak in ((0, 5.0, 100.0), (1, 15.0, 300.0)):
        for metric, value in ((names.RUN_CPU, cpu_s), (names.RUN_MEMORY_PEAK, peak)):
            run.row("readings", rank=rank, restart=0, name=metric.name, labels="{}",
                    time_ns=START + S, value=value)  # fmt: skip

    for state, value in (("allocated", 70.0), ("reserved", 90.0), ("allocated", 60.0)):
        labels = {names.DEVICE_INDEX: str(value), names.CUDA_MEMORY_STATE: state}
        run.row("readings", rank=0, restart=0, name=names.CUDA_MEMORY_PEAK_USAGE.name,
                labels=json.dumps(labels), time_ns=START + S, value=value)  # fmt: skip

    summary = summary_of(run)
    process = summary.process
    assert (process.cpus, process.memory_peak_bytes, process.cuda_peak_bytes) == (1.0, 300, 70)
    assert "process   1.00 CPUs, peak memory 300 B, CUDA 70 B\n" in render_summary(summary)


def test_workers_of_a_rank_have_a_number_of_their_own(run):
    """Their memory is no part of the process's; the most of all of them together is shown."""
    for metric, role, value in (
        (names.RUN_CPU, "", 5.0), (names.RUN_MEMORY_PEAK, "", 300.0),
        (names.PROCESS_MEMORY, "main", 290.0), (names.PROCESS_MEMORY, "worker", 900.0),
        (names.PROCESS_MEMORY, "worker", 700.0),
    ):  # fmt: skip
        labels = json.dumps({names.PROCESS_ROLE: role}) if role else "{}"
        run.row("readings", rank=0, restart=0, name=metric.name, labels=labels,
                time_ns=START + S, value=value)  # fmt: skip

    summary = summary_of(run)
    assert (summary.process.memory_peak_bytes, summary.process.workers_peak_bytes) == (300, 900)
    assert "peak memory 300 B, workers 900 B in total\n" in render_summary(summary)


def test_nothing_told(run):
    """A run in which nothing was measured has neither."""
    summary = summary_of(run)
    assert (summary.used, summary.process) == ([], None)
