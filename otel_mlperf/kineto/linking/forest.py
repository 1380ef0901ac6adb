"""Forests of nested events: the parents of events on one thread, and sums along the parents.

An event's parent is the innermost event of its track that contains it completely: the parent starts
no later, ends no earlier, and is still open when the event starts. Consequences:

- an event that starts inside another event and ends after it is not its child: both are children of
  the event that contains both (such pairs occur if an annotation is opened inside one call and
  closed inside another);
- an event with duration 0 is a child of the event that is open at its time; if one event ends there
  and the next starts, it is a child of the next. Two events with duration 0 at the same time are
  siblings;
- a negative duration counts as 0;
- among equal intervals, the one with the lower rank is the outer one; with equal ranks, the one
  with the lower row.

Python frames are nested separately from all other events. If the profiler missed the end of a
frame, the frame lasts until the end of the window and would contain all later events. Such a frame
is therefore cut at the end of the frame in which it started. A frame that ends after the event in
which it started is not the parent of anything in that event. Therefore the nearest ancestor that is
not a frame is the same with and without recorded frames.

Queries about parents process whole levels, or double the distance in each round; they never loop
over events.
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
"""Number of rows converted to Python integers at a time, because a million would need 100 MB."""
_Value = TypeVar("_Value", bound=np.generic)
_Integer = TypeVar("_Integer", bound=np.integer[Any])


class Forest:
    """Trees of rows, given by the row of each row's parent (NONE for a root)."""

    def __init__(self, parent: NDArray[np.int32]) -> None:
        self.parent = parent

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def levels(self) -> list[NDArray[np.int32]]:
        """Rows by depth: first the roots, then their children, and so on."""
        deep = narrowed(self.depth())
        order = np.argsort(deep, kind="stable").astype(np.int32)
        edges = np.flatnonzero(np.diff(deep[order])) + 1
        return [part for part in np.split(order, edges) if len(part)]

    def forget_levels(self) -> None:
        """Free the memory of ``levels``, which are computed again on the next access."""
        self.__dict__.pop("levels", None)

    def depth(self) -> NDArray[np.int32]:
        """Return the number of ancestors of each row."""
        above = self.parent
        deep: NDArray[np.int32] = (above != NONE).astype(np.int32)
        while (going := above != NONE).any():
            # All items use the state before the round, because the right-hand sides are copies.
            deep += np.where(going, looked_up(deep, above), np.int32(0))
            above = np.where(going, looked_up(above, above), np.int32(NONE))
        return deep

    def roots(self) -> NDArray[np.int32]:
        """Return the root of each row's tree; for a root, the root itself."""
        rows = np.arange(len(self), dtype=np.int32)
        return _followed(np.where(self.parent == NONE, rows, self.parent))

    def nearest(self, wanted: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Return for each row the nearest ancestor that ``wanted`` marks; NONE if there is none."""
        root = self.parent == NONE
        # Wanted rows and roots point to themselves; paths of other rows are followed upwards.
        rows = np.arange(len(self), dtype=np.int32)
        reached = _followed(np.where(wanted | root, rows, self.parent))
        del rows
        reached[~looked_up(wanted, reached)] = NONE
        above = looked_up(reached, self.parent)
        above[root] = NONE
        return above

    def sums(self, values: NDArray[_Integer]) -> NDArray[_Integer]:
        """Return for each row the sum of ``values`` over the row and its descendants."""
        total = values.copy()
        for rows in reversed(self.levels[1:]):
            np.add.at(total, self.parent[rows], total[rows])
        return total

    def smallest(self, values: NDArray[_Integer]) -> NDArray[_Integer]:
        """Return for each row the minimum of ``values`` over the row and its descendants."""
        least = values.copy()
        for rows in reversed(self.levels[1:]):
            np.minimum.at(least, self.parent[rows], least[rows])
        return least

    def smallest_above(self, values: NDArray[_Integer]) -> NDArray[_Integer]:
        """Return for each row the minimum of ``values`` over the row and its ancestors."""
        least = values.copy()
        for rows in self.levels[1:]:
            least[rows] = np.minimum(least[rows], least[self.parent[rows]])
        return least


def looked_up(values: NDArray[_Value], rows: NDArray[np.integer[Any]]) -> NDArray[_Value]:
    """Return ``values[rows]``, computed in pieces to save memory."""
    found = np.empty(len(rows), values.dtype)
    for begin in range(0, len(rows), _CHUNK):
        found[begin : begin + _CHUNK] = values[rows[begin : begin + _CHUNK]]
    return found


def _followed(next_row: NDArray[np.int32]) -> NDArray[np.int32]:
    while True:
        # Each round doubles the distance: ten thousand levels need fourteen rounds.
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
    """Return the index of each item's parent; NONE for a root. ``is_frame`` marks Python frames."""
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
    if same.any():  # Few rows: a fourth key for all rows would take 33 % longer.
        tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
        rows = order[tied]
        keys = (rows, rank[rows], -end[rows], start[rows], track[rows])
        order[tied] = rows[np.lexsort(keys)]
    return order


_EVENT, _FRAME = 0, 1
_Open = tuple[list[int], list[int]]
"""Rows of the open intervals, or their ends: first those of events, then those of frames."""


def _containing(
    order: NDArray[np.intp],
    track: NDArray[np.int32],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    is_frame: NDArray[np.bool_],
) -> NDArray[np.int32]:
    """Return the index of each interval's parent, the innermost containing interval, or NONE.

    ``order`` lists the intervals by track, outer ones first; ``is_frame`` marks Python frames.
    The loop over rows is intended: it needs 0.3 µs per row at any depth. Vectorized code, with a
    round for each level, is twice as fast on common traces but needs hours on very deep traces.
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
            # An event that ends before ``stop`` does not contain this event; later events that it
            # contains are inside this event, too. An open frame remains, because ``until`` cuts the
            # inner frame at its end.
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
    event, event_end = _innermost(open_rows[_EVENT], open_ends[_EVENT], begin, stop)
    frame, frame_end = _innermost(open_rows[_FRAME], open_ends[_FRAME], begin, stop)
    is_between = frame > event and (event == NONE or frame_end <= event_end)
    return frame if is_between else event if event != NONE else frame


def _innermost(rows: list[int], ends: list[int], begin: int, stop: int) -> tuple[int, int]:
    while ends and ends[-1] <= begin:
        ends.pop()
        rows.pop()
    at = len(ends)
    if ends and ends[-1] < stop:  # Rare; by bisection, because a file may be maliciously deep.
        at = bisect_right(ends, -stop, key=neg)
    return (rows[at - 1], ends[at - 1]) if at else (NONE, NONE)
