"""Which of the intervals of one thread is the innermost at a time?"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Cover:
    """Intervals, each open from its start until before its end; the last begun is innermost.

    Of those that begin together it is the one that ends first. With ``rows``, only these intervals
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
        """Index of the innermost interval at each time; NONE: none."""
        return self._inner[np.searchsorted(self._bounds, time_ns, "right")]

    def around(
        self, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], tolerance_ns: int
    ) -> NDArray[np.int32]:
        """Index of the innermost interval in which each event begins; NONE: none.

        An event that begins before an interval by no more than the tolerance, but has more of its
        time inside it than before it, counts as begun inside.
        """
        first = np.searchsorted(self._bounds, start_ns, "right")
        place = np.searchsorted(self._bounds, start_ns + tolerance_ns, "right")
        unsure = np.flatnonzero(place > first)
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
    """The times at which the innermost interval may change, and which it is before and after."""
    bounds = np.unique(np.concatenate((start, end)))
    waiting = iter(enumerate(np.lexsort((-end, start)).tolist()))
    begins, ends = start.tolist(), end.tolist()
    upcoming = next(waiting, None)
    open_: list[tuple[int, int]] = []
    inner = [NONE]
    for bound in bounds.tolist():
        while upcoming is not None and begins[upcoming[1]] <= bound:
            heapq.heappush(open_, (-upcoming[0], upcoming[1]))
            upcoming = next(waiting, None)
        while open_ and ends[open_[0][1]] <= bound:
            heapq.heappop(open_)
        inner.append(open_[0][1] if open_ else NONE)
    return bounds, np.array(inner, np.int32)
