"""Innermost open interval of the program at the start of each host event.

Intervals are recorded sections, or the annotations of steps; each is on one thread. An event is
looked up on its own thread. If no interval is open there, it is looked up on the thread that waits
for it: for a thread of autograd this is the thread whose forward operators it answers.
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
    """Intervals, each open from its start until before its end; the last started is innermost.

    Of those that start together it is the one that ends first. With ``rows``, only these intervals
    of the columns count.
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
        """Return the index of the innermost interval at each time; NONE: none."""
        return self._inner[np.searchsorted(self._bounds, time_ns, "right")]

    def around(
        self, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], tolerance_ns: int
    ) -> NDArray[np.int32]:
        """Return the index of the innermost interval in which each event starts; NONE: none.

        An event that starts before an interval by no more than the tolerance, but has more of its
        time inside it than before it, counts as started inside.
        """
        first = np.searchsorted(self._bounds, start_ns, "right")
        place = np.searchsorted(self._bounds, start_ns + tolerance_ns, "right")
        unsure = np.flatnonzero(place > first)
        # Bounds within the tolerance are tried from the last backwards: the innermost interval
        # that contains more of the event than precedes it.
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
    """Return the times at which the innermost interval may change, and it before and after each."""
    bounds = np.unique(np.concatenate((start, end)))
    waiting = iter(enumerate(np.lexsort((-end, start)).tolist()))
    begins, ends = start.tolist(), end.tolist()
    upcoming = next(waiting, None)
    open_: list[tuple[int, int]] = []
    inner = [NONE]
    for bound in bounds.tolist():
        # Starts are handled before ends of the same time: an interval of no length is never open.
        while upcoming is not None and begins[upcoming[1]] <= bound:
            heapq.heappush(open_, (-upcoming[0], upcoming[1]))
            upcoming = next(waiting, None)
        while open_ and ends[open_[0][1]] <= bound:
            heapq.heappop(open_)
        inner.append(open_[0][1] if open_ else NONE)
    return bounds, np.array(inner, np.int32)


class Open(NamedTuple):
    """Indices of intervals, one item for each event of the trace; NONE: none, or a device's."""

    own: NDArray[np.int32]
    """Interval open on the event's own thread."""
    waiting: NDArray[np.int32]
    """Interval open on the thread that waits for it, if there is none on its own."""


def find_open(
    trace: Trace,
    is_host: NDArray[np.bool_],
    covers: dict[int, Innermost],
    waiting: NDArray[np.int32],
    tolerance_ns: int,
) -> Open:
    """Return the innermost interval open where each event of the host starts.

    Args:
        trace: what was read.
        is_host: for each event whether it is the host's.
        covers: for each track the intervals on it.
        waiting: for each event the track that waits for it, NONE if it is not known.
        tolerance_ns: by how much the clocks of events and intervals may differ.
    """
    events = trace.events
    own = np.full(len(events), NONE, np.int32)
    there = own.copy()
    end = events.start_ns + np.maximum(events.duration_ns, 0)
    for track, rows in rows_by(events.track, np.flatnonzero(is_host)).items():
        if track in covers:
            own[rows] = covers[track].around(events.start_ns[rows], end[rows], tolerance_ns)
    for track, rows in rows_by(waiting, np.flatnonzero(is_host & (own == NONE))).items():
        if track in covers:
            there[rows] = covers[track].at(events.start_ns[rows])
    return Open(own, there)


def rows_by(
    values: NDArray[np.signedinteger[Any]], rows: NDArray[np.intp]
) -> dict[int, NDArray[np.intp]]:
    """Return the rows of each value, in ascending order, for any number of values."""
    rows = rows[np.argsort(values[rows], kind="stable")]
    edges = np.flatnonzero(np.diff(values[rows])) + 1
    return {int(values[part[0]]): part for part in np.split(rows, edges) if len(part)}


def find_waiting(
    trace: Trace, around: NDArray[np.int32], forward: NDArray[np.signedinteger[Any]]
) -> NDArray[np.int32]:
    """Return the track of the thread that waits for each event; NONE if it is not known.

    It is the track of the forward operator that the outermost event around it answers, else the
    track that most of its thread's operators answer.
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
