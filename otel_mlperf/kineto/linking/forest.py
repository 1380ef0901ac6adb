"""Forests of nested events: the parents of events on one thread, and sums along them.

An event's parent is the innermost event of its track that contains it whole: it starts no later,
ends no sooner, and has not ended where the event starts. Consequences:

- an event that starts inside another one and ends after it is not its child: both are children of
  the event that contains both (a profiler that opens an annotation inside one call and closes it
  inside another writes such pairs);
- an event of no duration belongs to what is open at its time; where one event ends and the next
  starts, it belongs to the next. Two events of no duration at the same time are siblings;
- a negative duration counts as no duration;
- of equal intervals the one with the lower rank is outside, then the one with the lower row.

Frames of Python nest apart from everything else. A frame whose end the profiler missed lasts until
the window ends and would be the innermost around all that follows. Such a frame counts as ended
with the frame that it started in. A frame that outlives an event in which it started is above
nothing of that event. So the nearest event above another that is not a frame is the one that would
be there without any frames.

Queries about parents are answered by levels or by doubling, never event by event.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property
from operator import neg
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from otel_mlperf.kineto.reading.value_columns import narrowed
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK = 1 << 16
"""Rows that are Python's integers at a time: a million of them would take 100 MB."""
_Value = TypeVar("_Value", bound=np.generic)
_Integer = TypeVar("_Integer", bound=np.integer[Any])


class Forest:
    """Forest of trees given by a column of parents; NONE: a root."""

    def __init__(self, parent: NDArray[np.int32]) -> None:
        self.parent = parent

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def levels(self) -> list[NDArray[np.int32]]:
        """The rows by depth, roots first."""
        deep = narrowed(self.depth())
        order = np.argsort(deep, kind="stable").astype(np.int32)
        edges = np.flatnonzero(np.diff(deep[order])) + 1
        return [part for part in np.split(order, edges) if len(part)]

    def forget_levels(self) -> None:
        """Free the memory of the levels; they are computed again when needed."""
        self.__dict__.pop("levels", None)

    def depth(self) -> NDArray[np.int32]:
        """Return the number of rows above each row."""
        above = self.parent
        deep: NDArray[np.int32] = (above != NONE).astype(np.int32)
        while (going := above != NONE).any():
            # All items of a round see the state before it: the right sides are copies.
            deep += np.where(going, looked_up(deep, above), np.int32(0))
            above = np.where(going, looked_up(above, above), np.int32(NONE))
        return deep

    def roots(self) -> NDArray[np.int32]:
        """Return the topmost row above each row; for a root, the root itself."""
        rows = np.arange(len(self), dtype=np.int32)
        return _followed(np.where(self.parent == NONE, rows, self.parent))

    def nearest(self, wanted: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Return the nearest wanted row above each row; NONE without one."""
        root = self.parent == NONE
        # Each wanted row, or root, points to itself; the other rows are followed upwards.
        rows = np.arange(len(self), dtype=np.int32)
        reached = _followed(np.where(wanted | root, rows, self.parent))
        del rows
        reached[~looked_up(wanted, reached)] = NONE
        above = looked_up(reached, self.parent)
        above[root] = NONE
        return above

    def sums(self, values: NDArray[_Integer]) -> NDArray[_Integer]:
        """Return for each row the sum of a column over it and everything below."""
        total = values.copy()
        for rows in reversed(self.levels[1:]):
            np.add.at(total, self.parent[rows], total[rows])
        return total

    def smallest(self, values: NDArray[_Integer]) -> NDArray[_Integer]:
        """Return for each row the smallest value of a column in it and everything below."""
        least = values.copy()
        for rows in reversed(self.levels[1:]):
            np.minimum.at(least, self.parent[rows], least[rows])
        return least

    def smallest_above(self, values: NDArray[_Integer]) -> NDArray[_Integer]:
        """Return for each row the smallest value of a column in it and everything above."""
        least = values.copy()
        for rows in self.levels[1:]:
            least[rows] = np.minimum(least[rows], least[self.parent[rows]])
        return least


def looked_up(values: NDArray[_Value], rows: NDArray[np.integer[Any]]) -> NDArray[_Value]:
    """Return ``values[rows]``, computed in pieces: numpy converts the given rows to 64 bits."""
    found = np.empty(len(rows), values.dtype)
    for begin in range(0, len(rows), _CHUNK):
        found[begin : begin + _CHUNK] = values[rows[begin : begin + _CHUNK]]
    return found


def _followed(next_row: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return where each row's path ends; the end of a path points to itself."""
    while True:
        # Each round looks twice as far up: ten thousand levels take fourteen rounds.
        further = looked_up(next_row, next_row)
        if np.array_equal(further, next_row):
            return next_row
        next_row = further


def find_parents(
    track: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    rank: NDArray[np.int64],
    is_frame: NDArray[np.bool_] | None = None,
) -> NDArray[np.int32]:
    """Return the index of each item's parent; NONE for a root."""
    end_ns = start_ns + np.maximum(duration_ns, 0)
    order = _outer_first(track, start_ns, end_ns, rank)
    frames = np.zeros(len(order), np.bool_) if is_frame is None else is_frame
    return _containing(order, track, start_ns, end_ns, frames)


def _outer_first(
    track: NDArray[np.int32],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    rank: NDArray[np.int64],
) -> NDArray[np.intp]:
    order = np.lexsort((-end, start, track))
    same = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in (track, start, end):
        ordered = column[order]
        same &= ordered[1:] == ordered[:-1]
    if same.any():  # Such rows are few: a fourth key for all rows would cost a third of the time.
        tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
        rows = order[tied]
        keys = (rows, rank[rows], -end[rows], start[rows], track[rows])
        order[tied] = rows[np.lexsort(keys)]
    return order


_EVENT, _FRAME = 0, 1
_Open = tuple[list[int], list[int]]
"""For events and for frames: rows, or ends, of those that may still contain something."""


def _containing(
    order: NDArray[np.intp],
    track: NDArray[np.int32],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    is_frame: NDArray[np.bool_],
) -> NDArray[np.int32]:
    """Return the parent of each interval; ``order`` lists them outer first.

    A loop over rows on purpose: 0.3 µs each however deep they nest. Rounds over whole arrays are
    twice as fast on common traces, but take hours on a trace that was made to be deep.
    """
    parent = np.empty(len(start), np.int32)
    open_rows: _Open = ([], [])
    open_ends: _Open = ([], [])
    current = NONE
    for first in range(0, len(start), _CHUNK):
        part = order[first : first + _CHUNK]
        places = []
        columns = (column[part].tolist() for column in (track, start, end, is_frame))
        for row, (its_track, begin, stop, kind) in enumerate(zip(*columns, strict=True), first):
            if its_track != current:
                open_rows, open_ends, current = ([], []), ([], []), its_track
            rows, ends = open_rows[kind], open_ends[kind]
            # An event that ends sooner contains nothing that starts later and ends later; a frame
            # never outlives the one that it started in.
            while ends and (ends[-1] <= begin or (ends[-1] < stop and kind == _EVENT)):
                ends.pop()
                rows.pop()
            until = min(stop, ends[-1]) if kind == _FRAME and ends else stop
            if open_rows[1 - kind]:
                places.append(_inner(open_rows, open_ends, begin, until))
            else:
                places.append(rows[-1] if rows else NONE)
            rows.append(row)
            ends.append(until)
        above = np.array(places)
        parent[part] = np.where(above == NONE, NONE, order[above])
    return parent


def _inner(open_rows: _Open, open_ends: _Open, begin: int, stop: int) -> int:
    """Return the parent of an interval, choosing the later start among open events and frames."""
    event, event_end = _innermost(open_rows[_EVENT], open_ends[_EVENT], begin, stop)
    frame, frame_end = _innermost(open_rows[_FRAME], open_ends[_FRAME], begin, stop)
    is_between = frame > event and (event == NONE or frame_end <= event_end)
    return frame if is_between else event if event != NONE else frame


def _innermost(rows: list[int], ends: list[int], begin: int, stop: int) -> tuple[int, int]:
    """Return row and end of the innermost interval that contains another; NONE: none does."""
    while ends and ends[-1] <= begin:
        ends.pop()
        rows.pop()
    at = len(ends)
    if ends and ends[-1] < stop:  # Rare; by bisection, since a file may be made to be deep.
        at = bisect_right(ends, -stop, key=neg)
    return (rows[at - 1], ends[at - 1]) if at else (NONE, NONE)
