"""Longest gaps in the work of each device, and what the host was doing during each of them.

The operator of a gap is the innermost event of the host (operator, call, annotation, Python
function) that covers at least half of the gap. It is looked up on the thread that launched the next
work; for the gap after the last work, on the thread that launched that last work. Annotations of
whole steps do not count. If no event covers half of the gap, the operator is empty: the thread ran
Python code, or waited for something that the trace does not contain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.counting.streams import find_waits, window_of
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.tables.window_tables import GapRow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace

MOST: Final = 20
"""Maximum number of gaps returned for each device."""
START: Final = "start"
HOST_WAIT: Final = "host_wait"
DEVICE_WAIT: Final = "device_wait"
UNKNOWN_WAIT: Final = "unknown_wait"
END: Final = "end"


class _Found(NamedTuple):
    start_ns: int
    end_ns: int
    cause: str
    row: int
    """Row of the work after the gap; NONE if the gap is after the last work."""


def find_gaps(trace: Trace, work: Work, links: Links) -> list[GapRow]:
    """Return up to ``MOST`` gaps of each device, longest first within a device."""
    gaps = _between(trace, work, links.launch)
    shown = ~(links.is_device | _outlives_caller(trace, links))
    # Steps are excluded, because the step around a gap does not explain it.
    shown[[step.row for step in links.steps if step.row != NONE]] = False
    rows = []
    for i, device in enumerate(work.devices):
        gaps[i] += _around(trace, work, i)
        gaps[i].sort(key=lambda gap: (gap.start_ns - gap.end_ns, gap.start_ns))
        for gap in gaps[i][:MOST]:
            track = _thread(trace, work, links.launch, i, gap.row)
            rows.append(_gap_row(trace, gap, device, track, shown))
    return rows


def _outlives_caller(trace: Trace, links: Links) -> NDArray[np.bool_]:
    events, around = trace.events, links.around
    end_ns = events.start_ns + events.duration_ns
    outlives: NDArray[np.bool_] = (around != NONE) & (end_ns > end_ns[around])
    return outlives


def _between(trace: Trace, work: Work, launch: NDArray[np.int32]) -> list[list[_Found]]:
    waits = find_waits(trace, work, launch, work.device)
    longest_of: list[list[_Found]] = [[] for _ in work.devices]
    longest = np.argsort(-waits.gap.length_ns, kind="stable")
    for i in longest.tolist():
        mine = longest_of[int(waits.gap.group[i])]
        # Gaps are visited longest first, so the first ones of each device are its longest.
        if len(mine) >= MOST:
            continue
        known = DEVICE_WAIT if waits.device[i] else UNKNOWN_WAIT
        cause = HOST_WAIT if waits.host[i] else known
        gap = waits.gap
        mine.append(_Found(int(gap.start_ns[i]), int(gap.end_ns[i]), cause, int(waits.row[i])))
    return longest_of


def _around(trace: Trace, work: Work, device: int) -> list[_Found]:
    begin, end = window_of(trace, work)
    mine = np.flatnonzero(work.device == device)
    first = mine[work.start_ns[mine].argmin()]
    last = int(work.end_ns[mine].max())
    both = [
        _Found(begin, int(work.start_ns[first]), START, int(work.rows[first])),
        _Found(last, end, END, NONE),
    ]
    return [gap for gap in both if gap.end_ns > gap.start_ns]


def _thread(trace: Trace, work: Work, launch: NDArray[np.int32], device: int, row: int) -> int:
    """Return the track on which the gap's operator is looked up; NONE if no launch is known."""
    if row != NONE and launch[row] != NONE:
        return int(trace.events.track[launch[row]])
    mine = np.flatnonzero(work.device == device)
    mine = mine[launch[work.rows[mine]] != NONE]
    if not len(mine):
        return NONE
    last = mine[work.end_ns[mine].argmax()]
    return int(trace.events.track[launch[work.rows[last]]])


def _gap_row(
    trace: Trace, gap: _Found, device: int, track: int, shown: NDArray[np.bool_]
) -> GapRow:
    row = _innermost(trace, gap, track, shown) if track != NONE else NONE
    names, events = trace.names, trace.events
    thread = trace.tracks[track] if track != NONE else None
    return GapRow(
        device=device,
        start_ns=gap.start_ns,
        duration_ns=gap.end_ns - gap.start_ns,
        cause=gap.cause,
        operator=names[events.name[row]] if row != NONE else "",
        thread=(thread.thread or thread.tid) if thread is not None else "",
        next=names[events.name[gap.row]] if gap.row != NONE else "",
    )


def _innermost(trace: Trace, gap: _Found, track: int, shown: NDArray[np.bool_]) -> int:
    events = trace.events
    rows = np.flatnonzero((events.track == track) & shown)
    start, duration = events.start_ns[rows], events.duration_ns[rows]
    inside = np.minimum(start + duration, gap.end_ns) - np.maximum(start, gap.start_ns)
    # A shorter operator does not explain the gap, so that it must cover at least half.
    rows = rows[inside * 2 >= gap.end_ns - gap.start_ns]
    if not len(rows):
        return NONE
    # Among events with equal start, the shorter event is the inner one.
    order = np.lexsort((-events.duration_ns[rows], events.start_ns[rows]))
    return int(rows[order[-1]])
