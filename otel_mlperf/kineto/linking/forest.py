"""Which event is around which on one thread, and what follows from that for all events at once?

An event's parent is the innermost event of its track that contains it whole: begins no later, ends
no sooner, and has not ended where it begins. So

- what begins inside another and ends after it is not its child: both are children of what contains
  both (a profiler that opens an annotation inside one call and closes it inside another writes
  such pairs);
- an event of no duration belongs to what is open at its time; where one ends and the next begins,
  to the next. Two of no duration at one time are neighbours;
- a negative duration counts as none;
- of equal intervals the lower rank is outside, then the lower row.

Questions about parents are answered by levels or by doubling, never event by event.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHUNK = 1 << 16
"""Rows that are Python's integers at a time: a million of them would take 100 MB."""


class Forest:
    """The trees that a column of parents makes; NONE: a root."""

    def __init__(self, parent: NDArray[np.int32]) -> None:
        self.parent = parent

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def levels(self) -> list[NDArray[np.intp]]:
        """The rows by depth, roots first."""
        deep = self.depth()
        order = np.argsort(deep, kind="stable")
        edges = np.flatnonzero(np.diff(deep[order])) + 1
        return [part for part in np.split(order, edges) if len(part)]

    def depth(self) -> NDArray[np.int32]:
        """How many rows are above each."""
        deep: NDArray[np.int32] = (self.parent != NONE).astype(np.int32)
        above = self.parent.copy()
        going = np.flatnonzero(above != NONE)
        while len(going):
            upper = above[going]
            # All of a round see the state before it: the right sides are copies.
            deep[going], above[going] = deep[going] + deep[upper], above[upper]
            going = going[above[going] != NONE]
        return deep

    def roots(self) -> NDArray[np.int32]:
        """The topmost row above each; a root's is itself."""
        rows = np.arange(len(self), dtype=np.int32)
        return _followed(np.where(self.parent == NONE, rows, self.parent))

    def nearest(self, wanted: NDArray[np.bool_]) -> NDArray[np.int32]:
        """The nearest wanted row above each; NONE where there is none."""
        rows = np.arange(len(self), dtype=np.int32)
        root = self.parent == NONE
        # Each wanted row, or root, stands for itself; the others are followed upwards.
        stop = _followed(np.where(wanted | root, rows, self.parent))
        reached = np.where(wanted[stop], stop, np.int32(NONE))
        above: NDArray[np.int32] = np.where(root, np.int32(NONE), reached[self.parent])
        return above

    def sums(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each row the sum of a column over it and everything below."""
        total = values.copy()
        for rows in reversed(self.levels[1:]):
            np.add.at(total, self.parent[rows], total[rows])
        return total

    def smallest(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each row the smallest value of a column in it and everything below."""
        least = values.copy()
        for rows in reversed(self.levels[1:]):
            np.minimum.at(least, self.parent[rows], least[rows])
        return least

    def smallest_above(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each row the smallest value of a column in it and everything above."""
        least = values.copy()
        for rows in self.levels[1:]:
            least[rows] = np.minimum(least[rows], least[self.parent[rows]])
        return least


def _followed(next_row: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where each row ends up; the end of a way points to itself."""
    while True:
        # Each round looks twice as far up: ten thousand levels take fourteen.
        further = next_row[next_row]
        if np.array_equal(further, next_row):
            return next_row
        next_row = further


def find_parents(
    track: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    duration_ns: NDArray[np.int64],
    rank: NDArray[np.int64],
) -> NDArray[np.int32]:
    """For each item the index of its parent; NONE for a root."""
    end_ns = start_ns + np.maximum(duration_ns, 0)
    order = _outer_first(track, start_ns, end_ns, rank)
    above = _containing(track[order], start_ns[order], end_ns[order])
    parent = np.full(len(order), NONE, np.int32)
    parent[order] = np.where(above == NONE, NONE, order[above])
    return parent


def _outer_first(
    track: NDArray[np.int32],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    rank: NDArray[np.int64],
) -> NDArray[np.intp]:
    order = np.lexsort((-end, start, track))
    same = np.ones(max(len(order) - 1, 0), np.bool_)
    for column in (track, start, end):
        same &= np.diff(column[order]) == 0
    if same.any():  # few: a fourth key for all of them would cost a third of the time
        tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
        rows = order[tied]
        keys = (rows, rank[rows], -end[rows], start[rows], track[rows])
        order[tied] = rows[np.lexsort(keys)]
    return order


def _containing(
    track: NDArray[np.int32], start: NDArray[np.int64], end: NDArray[np.int64]
) -> NDArray[np.int32]:
    """The parent of each of intervals sorted outer first.

    A loop over rows on purpose: 0.3 µs each however deep they nest. Rounds over whole arrays are
    twice as fast on common traces, and take hours on one that was made to be deep.
    """
    above = np.empty(len(start), np.int32)
    open_rows: list[int] = []
    open_ends: list[int] = []
    current = NONE
    for first in range(0, len(start), _CHUNK):
        part = slice(first, first + _CHUNK)
        parents = []
        rows = zip(track[part].tolist(), start[part].tolist(), end[part].tolist(), strict=True)
        for row, (its_track, begin, stop) in enumerate(rows, first):
            if its_track != current:
                open_rows, open_ends, current = [], [], its_track
            # What ends sooner contains nothing that comes later and ends later still.
            while open_ends and (open_ends[-1] < stop or open_ends[-1] <= begin):
                open_ends.pop()
                open_rows.pop()
            parents.append(open_rows[-1] if open_rows else NONE)
            open_rows.append(row)
            open_ends.append(stop)
        above[part] = parents
    return above
