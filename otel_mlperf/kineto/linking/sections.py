"""Recorded sections that were open during a profiler window, and the events inside them.

The recorder's times are monotonic time plus an anchor that was read when the process started. The
profiler's times are the system's Unix time. If the system clock was set or slewed in between, the
two differ. Both clocks were read together at the start and end of the window to measure the
difference.

The parent of an event is the innermost open interval, either a recorded section or an event of the
trace: an operator in a section in an annotation belongs to the section. An annotation or Python
frame around a section is sent as the section's sibling and not as its parent, because the section
was sent before the trace was available.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from otel_mlperf.journal.profiler_windows import Window
    from otel_mlperf.kineto.trace_events import Trace

_TWIN_NS: Final = 100_000
"""Maximum time between the start (or end) of an annotation and that of its section.

Opening or closing a section takes about 10 µs while the profiler runs, and several times longer if
the profiler records Python stacks.
"""


@dataclass(slots=True)
class Sections:
    """Recorded sections as columns, ordered by start; arrays have one item for each section."""

    span_id: NDArray[np.uint64]
    parent_id: NDArray[np.uint64]
    """Span id of the parent; 0 if the section is the root of its trace."""
    trace_id: NDArray[np.uint8]
    """16 bytes for each section."""
    start_ns: NDArray[np.int64]
    """Unix time in nanoseconds, in the clock of the window."""
    end_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    """Native id of the section's thread; NONE if it is not known."""
    is_step: NDArray[np.bool_]
    """Whether the section is a step of the window, that is, the root of a step's trace."""
    name: list[str]

    def __len__(self) -> int:
        return len(self.span_id)


_SQL: Final = """
    SELECT span_id, parent_id, trace_id, start_ns, end_ns, thread_id, name
    FROM spans
    WHERE rank = $rank AND restart = $restart AND kind = 'section'
        AND (list_contains($traces, trace_id) OR span_id = $parent)
    ORDER BY start_ns, end_ns DESC, span_id
"""


def read_sections(run_folder: Path, window: Window) -> Sections:
    """Return the recorded sections of the window's steps, and the section around the window.

    Only sections of the window's own process are read. A step that was not sampled or is not yet
    stored has no sections.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    rows = Store(run_folder, window.rank).rows(
        _SQL,
        rank=window.rank,
        restart=window.restart,
        traces=sorted({step.trace for step in window.steps}),
        parent=window.parent,
    )
    return _columns(rows, window)


def _columns(rows: list[tuple[Any, ...]], window: Window) -> Sections:
    span, parent, trace, start, end, thread, name = zip(*rows, strict=True) if rows else ((),) * 7
    steps = {step.span for step in window.steps}
    return Sections(
        span_id=np.array([int(span_id, 16) for span_id in span], np.uint64),
        parent_id=np.array([int(parent_id or "0", 16) for parent_id in parent], np.uint64),
        trace_id=np.frombuffer(bytes.fromhex("".join(trace)), np.uint8).reshape(-1, 16),
        start_ns=shifted(np.array(start, np.int64), window),
        end_ns=shifted(np.array(end, np.int64), window),
        thread=np.array([NONE if number is None else number for number in thread], np.int64),
        is_step=np.array([span_id in steps for span_id in span], np.bool_),
        name=list(name),
    )


def shifted(unix_ns: NDArray[np.int64], window: Window) -> NDArray[np.int64]:
    """Return the recorder's times converted to the system clock of a window.

    A time of the recorder is ``monotonic + anchor``. At both ends of the window, the system clock
    was read together with the monotonic clock. The deviation of ``system - monotonic`` from the
    anchor is added to the times, linearly interpolated or extrapolated.
    """
    anchor = window.anchor[0] - window.anchor[1]
    if window.anchor == (0, 0):  # The anchor is not known: recorded times stay unchanged.
        return unix_ns
    off_start = window.start[0] - window.start[1] - anchor
    off_end = window.end[0] - window.end[1] - anchor
    since = unix_ns - (window.start[1] + anchor)
    # Interpolation is correct for slewing. A jump of the clock within the window cannot be
    # distinguished from slewing, and is spread over the window.
    slope = (off_end - off_start) / max(window.end[1] - window.start[1], 1)
    moved: NDArray[np.int64] = unix_ns + off_start + np.rint(since * slope).astype(np.int64)
    return moved


def no_sections() -> Sections:
    """Return sections without items, for a trace that belongs to no run."""
    ids, times = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    return Sections(
        span_id=ids,
        parent_id=ids,
        trace_id=np.zeros((0, 16), np.uint8),
        start_ns=times,
        end_ns=times,
        thread=np.full(0, NONE, np.int64),
        is_step=np.zeros(0, np.bool_),
        name=[],
    )


def sections_of_tracks(trace: Trace, threads: NDArray[np.int64]) -> dict[int, NDArray[np.intp]]:
    """Return, by track, the indices of the sections that ran on the track's thread.

    ``threads`` contains the native thread id of each section; tracks without sections are omitted.
    """
    of_thread = {
        str(thread): np.flatnonzero(threads == thread)
        for thread in np.unique(threads).tolist()
        if thread != NONE
    }
    return {
        track: of_thread[row.tid] for track, row in enumerate(trace.tracks) if row.tid in of_thread
    }


def find_twins(
    trace: Trace,
    sections: Sections,
    of_track: dict[int, NDArray[np.intp]],
    annotations: NDArray[np.intp],
    steps: NDArray[np.intp],
) -> NDArray[np.int32]:
    """Return the index of the section that each annotation repeats; NONE for other events.

    Such an annotation has the section's thread and name, and nearly the same start and end; each
    section has at most one. An annotation of a step (``steps``) repeats the recorded step with
    which it shares more than half of the longer one's duration. ``of_track`` is the result of
    ``sections_of_tracks``; ``annotations`` and ``steps`` are rows.
    """
    twins = np.full(len(trace.events), NONE, np.int32)
    for track, candidates in of_track.items():
        named: dict[str, list[int]] = defaultdict(list)
        for index in candidates.tolist():
            named[sections.name[index]].append(index)
        taken: set[int] = set()
        for row in annotations[trace.events.track[annotations] == track].tolist():
            twin = _nearest(trace, row, sections, named[trace.names[trace.events.name[row]]])
            if twin not in (NONE, *taken):
                twins[row] = twin
                taken.add(twin)
        recorded = candidates[sections.is_step[candidates]].tolist()
        for row in steps[trace.events.track[steps] == track].tolist():
            twins[row] = _same_time(trace, row, sections, recorded)
    return twins


def _nearest(trace: Trace, row: int, sections: Sections, candidates: list[int]) -> int:
    start = int(trace.events.start_ns[row])
    end = start + int(trace.events.duration_ns[row])
    # Only the last section before the annotation's start and the next one can be a twin.
    at = bisect.bisect(candidates, start, key=lambda index: int(sections.start_ns[index]))
    near = [
        index
        for index in candidates[max(at - 1, 0) : at + 1]
        if abs(int(sections.start_ns[index]) - start) <= _TWIN_NS
        and abs(int(sections.end_ns[index]) - end) <= _TWIN_NS
        and _shares_half(start, end, sections, index)
    ]
    return min(near, key=lambda index: abs(int(sections.start_ns[index]) - start), default=NONE)


def _same_time(trace: Trace, row: int, sections: Sections, candidates: list[int]) -> int:
    start = int(trace.events.start_ns[row])
    end = start + int(trace.events.duration_ns[row])
    return next((index for index in candidates if _shares_half(start, end, sections, index)), NONE)


def _shares_half(start: int, end: int, sections: Sections, index: int) -> bool:
    begin, stop = int(sections.start_ns[index]), int(sections.end_ns[index])
    return 2 * (min(end, stop) - max(start, begin)) > max(end - start, stop - begin)


def is_of_section(
    parent: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    inner: NDArray[np.int32],
    sections: Sections,
) -> NDArray[np.bool_]:
    """Return for each event whether its parent is its section instead of the event around it.

    This is the case for an event without an event around it, and for an event whose section started
    inside the event around it.

    Args:
        parent: row of the event around each event.
        start_ns: start of each event.
        inner: index of the innermost section in which each event starts.
        sections: the recorded sections.
    """
    begin = np.append(sections.start_ns, 0)[inner]
    is_further_in = (inner != inner[parent]) & (begin >= start_ns[parent])
    hangs_under: NDArray[np.bool_] = (inner != NONE) & ((parent == NONE) | is_further_in)
    return hangs_under
