"""Critical path of a trace: the chain of events for which the end of the trace waited.

The path is followed backwards from the event that ended last:

- device work waited for its predecessor on the stream if that ended after the launching call,
  otherwise for the call;
- a call that waits for the device waited for the device work that ended during the call;
- any other call or operator waited for the previous event of its thread;
- the first event of a thread waited for the host event that ended last before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.counting.device_work import find_work
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace

_WAITING: Final = "Synchronize"
"""Part of the names of calls that return when the device has finished its work."""


def critical_path(trace: Trace, links: Links) -> NDArray[np.bool_]:
    """Return whether each event is on the critical path."""
    on_path = np.zeros(len(trace.events), bool)
    lanes = _Lanes(trace, links)
    if not len(lanes.rows):
        return on_path
    # The path is followed in pieces, from stop to stop, because a loop over all events is slow.
    begins, ends = lanes.walk()
    marks = np.zeros(len(lanes.rows) + 1, np.int64)
    np.add.at(marks, begins, 1)
    np.add.at(marks, np.asarray(ends) + 1, -1)
    on_path[lanes.rows[np.cumsum(marks[:-1]) > 0]] = True
    return on_path


class _Lanes:
    """Lanes: innermost host events of each thread, and work of each stream, in time order.

    A stop is a position at which the backward path leaves a lane; between two stops, the path
    follows the lane.
    """

    def __init__(self, trace: Trace, links: Links) -> None:
        events = trace.events
        work, around = np.zeros(len(events), bool), np.zeros(len(events), bool)
        work[find_work(trace).rows] = True
        inside = links.parent[(links.parent != NONE) & ~links.is_device]
        around[inside] = True
        roles = find_roles(trace)
        # Only innermost events, because an outer event waits for the events inside it.
        other = (roles == Role.PYTHON) | (roles == Role.WINDOW) | links.is_device
        rows = np.flatnonzero(work | ~(around | other)).astype(np.int32)
        self.rows = rows[np.lexsort((events.start_ns[rows], events.track[rows]))]
        self._is_work = work[self.rows]
        self._start = events.start_ns[self.rows]
        self._end = self._start + events.duration_ns[self.rows]
        place = np.full(len(events) + 1, NONE, np.int32)  # The last item is for NONE.
        place[self.rows] = np.arange(len(self.rows), dtype=np.int32)
        self._launch = place[links.launch[self.rows]]
        waits = np.array([_WAITING in name for name in trace.names] or [False])
        self._waits = waits[events.name[self.rows]] & ~self._is_work
        self._first = np.diff(events.track[self.rows], prepend=NONE - 1) != 0
        self._ended = {kind: self._by_end(self._is_work == kind) for kind in (True, False)}
        self._last_stop = self._find_stops()

    def _by_end(self, which: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        places = np.flatnonzero(which)
        places = places[np.argsort(self._end[places], kind="stable")]
        return places, self._end[places]

    def _find_stops(self) -> NDArray[np.int32]:
        before = np.roll(self._end, 1)
        launched = (self._launch != NONE) & (before <= self._end[self._launch])
        stops = self._first | np.where(self._is_work, launched, self._waits)
        at = np.arange(len(stops), dtype=np.int32)
        places: NDArray[np.int32] = np.maximum.accumulate(np.where(stops, at, np.int32(0)))
        return places

    def walk(self) -> tuple[list[int], list[int]]:
        """Return the first and the last position of each piece of the path."""
        at, seen = int(np.argmax(self._end)), set[int]()
        begins: list[int] = []
        ends: list[int] = []
        while at != NONE:
            stop = int(self._last_stop[at])
            begins.append(stop)
            ends.append(at)
            # The path may be a cycle if the clocks of host and device disagree.
            if stop in seen:
                break
            seen.add(stop)
            at = self._before(stop)
        return begins, ends

    def _before(self, stop: int) -> int:
        """Return the position of the path's next event before ``stop``; NONE if there is none."""
        if self._is_work[stop]:
            return int(self._launch[stop])
        if self._waits[stop]:
            awaited = self._ended_by(int(self._end[stop]), work=True)
            if awaited != NONE and self._end[awaited] > self._start[stop]:
                return awaited
            if not self._first[stop]:
                return stop - 1
        return self._ended_by(int(self._start[stop]), work=False)

    def _ended_by(self, time_ns: int, *, work: bool) -> int:
        places, ends = self._ended[work]
        at = int(np.searchsorted(ends, time_ns, side="right")) - 1
        return int(places[at]) if at >= 0 else NONE
