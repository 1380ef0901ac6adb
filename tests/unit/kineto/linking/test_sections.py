"""The recorded sections of a window are read, in the window's clock."""

from __future__ import annotations

import numpy as np
import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf.journal.profiler_windows import Window, WindowStep
from otel_mlperf.kineto.linking.sections import read_sections, shifted
from otel_mlperf.kineto.trace_events import NONE

ANCHOR = (START, 5 * S)
"""Unix and monotonic time when the process began."""


def window(*steps, start=0, end=0, **fields):
    """A window from 1 s to 3 s after START; its clock is off by ``start`` and ``end`` ns there."""
    begin = (START + S + start, 6 * S)
    stop = (START + 3 * S + end, 8 * S)
    values = {
        "run_id": "3f2a9c0d17e84b55",
        "restart": 0,
        "rank": 0,
        "world_size": 1,
        "pid": 100,
        "number": 0,
        "trace": "w.pt.trace.json",
        "parent": "",
        "anchor": ANCHOR,
        "steps": [
            WindowStep(phase="train", n=n, number=n, span=span, trace=f"{n + 1:032x}")
            for n, span in steps
        ],
        "start": begin,
        "end": stop,
        "activities": ["cpu"],
    }
    return Window(**values | fields)


@pytest.fixture
def folder(tmp_path):
    return RunFolderBuilder(tmp_path)


def test_sections_of_the_windows_steps_are_read(folder) -> None:
    """Those of other steps, ranks, restarts and kinds are not."""
    step = folder.span(4, "train.step", 0, 100 * MS, thread_id=4242)
    folder.span(4, "forward", 10 * MS, 40 * MS, parent_id=step, thread_id=4242)
    folder.span(4, "fetch", 5 * MS, 20 * MS, parent_id=step, thread_id=None)
    folder.span(5, "train.step", 200 * MS, 100 * MS)
    folder.span(4, "train.step", 0, 100 * MS, rank=1)
    folder.span(4, "train.step", 0, 100 * MS, restart=1)
    folder.span(4, "aten::mm", 12 * MS, 2 * MS, kind="event")
    folder.write()

    sections = read_sections(folder.path, window((4, step)))

    assert sections.name == ["train.step", "fetch", "forward"]
    assert sections.is_step.tolist() == [True, False, False]
    assert sections.thread.tolist() == [4242, NONE, 4242]
    assert sections.parent_id.tolist() == [0, *[int(step, 16)] * 2]
    assert sections.span_id[0] == int(step, 16)
    assert [trace.tobytes().hex() for trace in sections.trace_id] == [f"{5:032x}"] * 3
    assert sections.start_ns.tolist() == [START, START + 5 * MS, START + 10 * MS]
    assert sections.end_ns.tolist() == [START + 100 * MS, START + 25 * MS, START + 50 * MS]


def test_section_that_exported_the_window_is_read_too(folder) -> None:
    """It is of the run's trace, and above what belongs to no step."""
    export = folder.span(90, "profiler.export", 300 * MS, 50 * MS)
    folder.span(90, "checkpoint", 400 * MS, 50 * MS)
    folder.write()

    sections = read_sections(folder.path, window(parent=export))

    assert sections.name == ["profiler.export"]
    assert sections.is_step.tolist() == [False]


def test_run_without_spans_has_no_sections(folder) -> None:
    """A step that was not kept, or is not there yet."""
    folder.write()

    sections = read_sections(folder.path, window((4, "00000000000000aa")))

    assert len(sections) == 0
    assert sections.trace_id.shape == (0, 16)


@pytest.mark.fault("F30")
def test_times_follow_a_clock_that_was_set(folder) -> None:
    """The system's clock was put 2 s back after the process began: the window tells it."""
    step = folder.span(4, "train.step", S, 100 * MS)
    folder.write()

    sections = read_sections(folder.path, window((4, step), start=-2 * S, end=-2 * S))

    assert sections.start_ns.tolist() == [START + S - 2 * S]
    assert sections.end_ns.tolist() == [START + S + 100 * MS - 2 * S]


def test_times_follow_a_clock_that_drifts() -> None:
    """In proportion between the ends of the window, and beyond."""
    times = np.array([START + S, START + 2 * S, START + 3 * S, START + 4 * S])

    moved = shifted(times, window(start=1_000, end=5_000)) - times

    assert moved.tolist() == [1_000, 3_000, 5_000, 7_000]


def test_times_stand_where_the_anchor_is_not_known() -> None:
    """A window without it is in the recorder's own clock as far as anybody knows."""
    times = np.array([START + S])

    assert shifted(times, window(anchor=(0, 0), start=1_000)).tolist() == times.tolist()
