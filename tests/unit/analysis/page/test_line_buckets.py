"""The lines of readings and logged values show exactly what was read and logged."""

from __future__ import annotations

import json

import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.analysis.page.line_buckets import (
    MOST,
    Line,
    read_reading_charts,
    read_value_charts,
)
from otel_mlperf.store.table_reader import Store

END = START + 600 * S
PIECE = 2 * S
MAIN = {names.PROCESS_ROLE: "main"}


@pytest.fixture
def run(tmp_path):
    """A folder that is being built."""
    return RunFolderBuilder(tmp_path)


def reading(run, metric, value, at, labels=None, rank=0):
    run.row(
        "readings",
        rank=rank,
        restart=0,
        name=metric.name,
        labels=json.dumps(labels or {}),
        time_ns=START + at,
        value=float(value),
    )


def charts_of(run):
    return read_reading_charts(Store(run.write()), START, END)


def test_what_was_read_in_a_piece_stands_there_with_its_reach(run):
    """Smallest, mean and largest; a piece without a reading has no point."""
    for at, value in ((0, 1e9), (S, 3e9), (10 * S, 2e9)):
        reading(run, names.PROCESS_MEMORY, value, at, MAIN)

    (chart,) = charts_of(run)

    assert (chart.id, chart.unit, chart.is_bucketed) == ("memory", "By", True)
    assert chart.lines == [
        Line(
            name="rank 0",
            time_ns=[START, START + 10 * S],
            min=[1e9, 2e9],
            mean=[2e9, 2e9],
            max=[3e9, 2e9],
        )
    ]


def test_only_the_labels_that_a_chart_is_about_are_in_it(run):
    """No workers among processes, no memory's temperature, no instance inside a GPU."""
    gpu = {names.HW_ID: "a", names.HW_NAME: "gpu0"}
    reading(run, names.PROCESS_MEMORY, 1, 0, {names.PROCESS_ROLE: "worker"})
    reading(run, names.HW_TEMPERATURE, 90, 0, gpu | {names.HW_SENSOR_LOCATION: "memory"})
    reading(run, names.GPU_MEMORY_USAGE, 5, 0, gpu | {names.HW_PARENT: "b"})
    reading(run, names.GPU_MEMORY_USAGE, 7, 0, gpu)

    found = charts_of(run)

    assert [(chart.id, [line.name for line in chart.lines]) for chart in found] == [
        ("gpu-memory", ["rank 0 gpu0"])
    ]


def test_processors_are_busy_where_they_are_not_idle(run):
    """The longest idle time is the least busy one."""
    for at, idle in ((0, 0.9), (S, 0.5)):
        reading(run, names.SYSTEM_CPU_UTILIZATION, idle, at, {names.CPU_MODE: "idle"}, rank=None)

    ((line,),) = (chart.lines for chart in charts_of(run))

    assert line.name == "host"
    assert (line.min, line.mean, line.max) == (
        pytest.approx([0.1]),
        pytest.approx([0.3]),
        pytest.approx([0.5]),
    )


def test_many_ranks_are_one_line_with_its_reach(run):
    """The mean of all, between the smallest and the largest."""
    for rank in range(16):
        reading(run, names.PROCESS_MEMORY, rank, rank * MS, MAIN, rank=rank)

    ((line,),) = (chart.lines for chart in charts_of(run))

    assert line == Line(name="mean of 16 lines", time_ns=[START], min=[0.0], mean=[7.5], max=[15.0])


def test_a_long_run_has_as_many_points_as_a_page_shows(run):
    """However often it was read; none of its peaks is lost."""
    for at in range(2 * MOST):
        reading(run, names.PROCESS_MEMORY, 9 if at == 77 else 1, at * S, MAIN)

    ((line,),) = (chart.lines for chart in charts_of(run))

    assert len(line.mean) == MOST
    assert max(line.max) == 9


def test_what_was_logged_has_a_chart_each(run):
    """In the order in which it came up; one value is no course, and infinity no point."""
    for name, at, value in (
        ("loss", 0, 2.0),
        ("accuracy", 1, 0.5),
        ("loss", 10, 1.0),
        ("accuracy", 11, 0.75),
        ("loss", 20, float("inf")),
        ("once", 3, 1.0),
    ):
        row = {"rank": 0, "restart": 0, "phase": "train", "number": at, "name": name}
        run.row("values", time_ns=START + at * S, value=value, **row)

    found = read_value_charts(Store(run.write()), START, END)

    assert [(chart.title, chart.lines[0].mean) for chart in found] == [
        ("loss", [2.0, 1.0]),
        ("accuracy", [0.5, 0.75]),
    ]
