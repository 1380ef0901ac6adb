"""Unread profiler windows are listed, and skipped ones are counted."""

from __future__ import annotations

import pytest
from run_folders import MS, START, digits

from otel_mlperf.analysis.profiles.kernel_totals import read_rows
from otel_mlperf.analysis.profiles.recorded_windows import find_unread, read_left_out
from otel_mlperf.doctor.check_run import check_profiler
from otel_mlperf.errors import NoSuchWindow
from otel_mlperf.journal.profiler_windows import Window, write_window
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store


def recorded(folder, number, rank=0):
    """A window that a process has finished."""
    (folder / "profiles").mkdir(exist_ok=True)
    window = Window(
        run_id="r", restart=0, rank=rank, world_size=2, pid=1, number=number,
        trace=f"rank{rank}.{number}.pt.trace.json", parent="", steps=[], start=(0, 0), end=(0, 0),
        activities=["cpu"],
    )  # fmt: skip
    write_window(folder / "profiles", window)
    return window.trace


def test_windows_that_no_table_holds_are_unread(tmp_path):
    """Of one rank, if it is given; a description that is none is not waited for."""
    run = digits(tmp_path)
    run.row(
        "windows", rank=0, restart=0, digest="a", number=0, trace="rank0.0.pt.trace.json",
        start_ns=START, end_ns=START + MS, is_unix_time=True, steps="[]", categories="{}",
        orphans="{}", damage="[]",
    )  # fmt: skip
    found = read_run(run.write())
    traces = [recorded(found.path, 0), recorded(found.path, 1), recorded(found.path, 0, rank=1)]
    (found.path / "profiles" / "rank0.9.window.json").write_text("{")
    store = Store(found.path)

    assert find_unread(found, store) == traces[1:]
    assert find_unread(found, store, 1) == traces[2:]


def test_kernels_of_an_unread_window_are_promised(tmp_path):
    """Not denied: the trace is there, and somebody reads it."""
    found = read_run(digits(tmp_path).write())
    with pytest.raises(NoSuchWindow, match="the run has none; record a window"):
        read_rows(found)
    recorded(found.path, 0)
    with pytest.raises(NoSuchWindow, match="1 window is still being read; try again in a moment"):
        read_rows(found)
    recorded(found.path, 0, rank=1)
    with pytest.raises(NoSuchWindow, match=r"of rank 1 .* 1 window is still being read"):
        read_rows(found, 1)
    with pytest.raises(NoSuchWindow, match="2 windows are still being read"):
        read_rows(found)


def test_windows_left_out_are_counted_by_reason(tmp_path):
    """The last value of each rank counts; the most first."""
    run = digits(tmp_path)
    for rank, name, time, value in (
        (0, "busy", 1, 1), (0, "busy", 2, 2), (1, "busy", 1, 1), (0, "not_reached", 1, 1),
        (0, "memory", 1, 0),
    ):  # fmt: skip
        run.row(
            "readings", rank=rank, restart=0, name=f"otel_mlperf.profile.skipped.{name}",
            labels="{}", time_ns=START + time, value=float(value),
        )  # fmt: skip

    found = read_left_out(Store(run.write()))
    assert next(check.found for check in check_profiler(found)) == (
        "3 windows skipped: another profiler was running"
    )
    assert found == {
        "another profiler was running": 3,
        "the run or block ended before the first step of the window": 1,
    }
