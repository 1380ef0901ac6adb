"""How are questions about parents answered for all events at once?

By levels or by doubling, never event by event.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        found = np.where(wanted[stop], stop, np.int32(NONE))
        above: NDArray[np.int32] = np.where(root, np.int32(NONE), found[self.parent])
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
        further = next_row[next_row]
        if np.array_equal(further, next_row):
            return next_row
        next_row = further
