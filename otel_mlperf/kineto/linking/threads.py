"""Innermost section or step that is open at the start of each host event.

Intervals are recorded sections or annotations of steps; each is on one thread. An event is looked
up on its own thread and, if no interval is open there, on the thread that waits for it. The thread
that waits for a thread of autograd is the one that ran the forward operators of its backward
operators.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace


class Innermost:
    """Lookup of the innermost of several intervals: the open interval that started last.

    An interval includes its start and excludes its end. If several start together, the one that
    ends first is innermost. If ``rows`` is given, only these intervals count.
    """

    def __init__(
        self,
        start_ns: NDArray[np.int64],
        end_ns: NDArray[np.int64],
        rows: NDArray[np.intp] | None = None,
    ) -> None:
        self._start = start_ns
        rows = np.arange(len(start_ns)) if rows is None else rows
        self._bounds, inner = _segments(start_ns[rows], end_ns[rows])
        self._inner = np.append(rows, NONE)[inner].astype(np.int32)

    def at(self, time_ns: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the index of the innermost interval at each time; NONE if none is open."""
        return self._inner[np.searchsorted(self._bounds, time_ns, "right")]

    def around(
        self, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], tolerance_ns: int
    ) -> NDArray[np.int32]:
        """Return the index of the innermost interval in which each event starts, or NONE.

        An event that starts before an interval, but by at most ``tolerance_ns``, counts as started
        inside if more of the event's duration is inside the interval than before.
        """
        first = np.searchsorted(self._bounds, start_ns, "right")
        place = np.searchsorted(self._bounds, start_ns + tolerance_ns, "right")
        unsure = np.flatnonzero(place > first)
        # Bounds within the tolerance are tried in reverse order, to find the innermost interval
        # that contains the larger part of the event.
        while len(unsure):
            inner = self._inner[place[unsure]]
            begin = np.append(self._start, 0)[inner]
            event, end = start_ns[unsure], end_ns[unsure]
            is_inside = (inner != NONE) & (begin > event) & (end - begin > begin - event)
            unsure = unsure[~is_inside]
            place[unsure] -= 1
            unsure = unsure[place[unsure] > first[unsure]]
        return self._inner[place]


def _segments(
    start: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the sorted bounds of all intervals, and the innermost interval between bounds.

    The second array has one more item, because its first item applies before the first bound.
    """
    bounds = np.unique(np.concatenate((start, end)))
    waiting = iter(enumerate(np.lexsort((-end, start)).tolist()))
    begins, ends = start.tolist(), end.tolist()
    upcoming = next(waiting, None)
    open_: list[tuple[int, int]] = []
    inner = [NONE]
    for bound in bounds.tolist():
        # Starts precede ends of the same time, so that an interval with length 0 is never open.
        while upcoming is not None and begins[upcoming[1]] <= bound:
            heapq.heappush(open_, (-upcoming[0], upcoming[1]))
            upcoming = next(waiting, None)
        while open_ and ends[open_[0][1]] <= bound:
            heapq.heappop(open_)
        inner.append(open_[0][1] if open_ else NONE)
    return bounds, np.array(inner, np.int32)


class Open(NamedTuple):
    """Interval that is open at each event's start; NONE if none is open, or for a device event."""

    own: NDArray[np.int32]
    """Index of the interval that is open on the event's own thread."""
    waiting: NDArray[np.int32]
    """Index of the interval on the thread that waits for the event; only set if ``own`` is NONE."""


def find_open(
    trace: Trace,
    is_host: NDArray[np.bool_],
    covers: dict[int, Innermost],
    waiting: NDArray[np.int32],
    tolerance_ns: int,
) -> Open:
    """Return the innermost interval that is open when each host event starts.

    Args:
        trace: the trace.
        is_host: whether each event is a host event.
        covers: intervals by track.
        waiting: track of the thread that waits for each event; NONE if not known.
        tolerance_ns: maximum difference between the clocks of events and intervals.
    """
    events = trace.events
    own = np.full(len(events), NONE, np.int32)
    on_waiting = own.copy()
    end = events.start_ns + np.maximum(events.duration_ns, 0)
    for track, rows in rows_by(events.track, np.flatnonzero(is_host)).items():
        if track in covers:
            own[rows] = covers[track].around(events.start_ns[rows], end[rows], tolerance_ns)
    for track, rows in rows_by(waiting, np.flatnonzero(is_host & (own == NONE))).items():
        if track in covers:
            on_waiting[rows] = covers[track].at(events.start_ns[rows])
    return Open(own, on_waiting)


def rows_by(
    values: NDArray[np.signedinteger[Any]], rows: NDArray[np.intp]
) -> dict[int, NDArray[np.intp]]:
    """Group ``rows`` by their values in ``values``; return the rows by value, ascending."""
    rows = rows[np.argsort(values[rows], kind="stable")]
    edges = np.flatnonzero(np.diff(values[rows])) + 1
    return {int(values[part[0]]): part for part in np.split(rows, edges) if len(part)}


def find_waiting(
    trace: Trace, around: NDArray[np.int32], forward: NDArray[np.signedinteger[Any]]
) -> NDArray[np.int32]:
    """Return the track of the thread that waits for each event; NONE if no other thread is known.

    If the outermost event around an event is a backward operator, the result is the track of the
    matching forward operator. Otherwise it is the most frequent track among the forward operators
    of all backward operators on the event's thread.
    """
    track = trace.events.track
    answers = np.flatnonzero(forward != NONE)
    count = len(trace.tracks) + 1
    both = track[answers].astype(np.int64) * count + track[forward[answers]]
    pairs, uses = np.unique(both, return_counts=True)
    pairs = pairs[np.argsort(uses, kind="stable")]
    usual = np.full(count, NONE, np.int32)
    usual[pairs // count] = pairs % count  # The most used track is written last and remains.
    outermost = forward[Forest(around).roots()]
    waits: NDArray[np.int32] = np.where(outermost == NONE, usual[track], track[outermost])
    waits[waits == track] = NONE
    return waits
