"""Unions, gaps, overlaps and self times of intervals.

All results are exact integers. Sets of intervals are sorted once, and nothing is iterated in
Python. A *group* (a stream, a device, a parent) is a number; intervals of different groups never
meet.

Self time, wherever it is shown, is a duration less what the intervals directly inside cover.
``inner_ns`` computes it where all intervals are there as columns. ``CoveredTime`` computes it where
they come one by one (the agent sees children long before the section around them ends, a page shows
a handful). A property test asserts that the two are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    Integers = NDArray[np.integer[Any]]


Count = TypeVar("Count", int, NDArray[np.int64])


class Intervals(NamedTuple):
    """Set of intervals that neither overlap nor touch, by group and start."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    group: NDArray[np.int64]
    first: NDArray[np.intp]
    """Index of the given interval that opens it; for a gap, of the one that ends it."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def length_ns(self) -> NDArray[np.int64]:
        """Return the length of each interval."""
        return self.end_ns - self.start_ns


def union(start_ns: Integers, end_ns: Integers, group: Integers) -> Intervals:
    """Return the time that at least one interval of a group covers.

    An interval that ends before it starts covers nothing.
    """
    order = np.lexsort((start_ns, group))
    start, inside, end = (_wide(column[order]) for column in (start_ns, group, end_ns))
    end = np.maximum(end, start)
    if not len(start):
        return Intervals(start, end, inside, order)
    reach = _running_maximum(end, inside)
    del end
    opens = np.ones(len(start), bool)
    opens[1:] = (start[1:] > reach[:-1]) | (inside[1:] != inside[:-1])
    last = np.append(np.flatnonzero(opens)[1:], len(start)) - 1
    return Intervals(start[opens], reach[last], inside[opens], order[opens])


def gaps(covered: Intervals) -> Intervals:
    """Return the gaps between the intervals of each group."""
    same = covered.group[1:] == covered.group[:-1]
    return Intervals(
        covered.end_ns[:-1][same],
        covered.start_ns[1:][same],
        covered.group[1:][same],
        covered.first[1:][same],
    )


def sums(values: Integers, group: Integers, groups: int) -> NDArray[np.int64]:
    """Return the sum of the values of each group."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, _wide(values))
    return total


def shared(sets: Sequence[Intervals], groups: int) -> NDArray[np.int64]:
    """Return the duration of each combination of the sets in each group.

    Column ``m`` of the result is the time in which exactly the sets whose bits are set in ``m``
    were active. Column 0, in which none was, counts only the time between intervals.
    """
    times = np.concatenate(
        [part for intervals in sets for part in (intervals.start_ns, intervals.end_ns)]
    )
    inside = np.concatenate(
        [part for intervals in sets for part in (intervals.group, intervals.group)]
    )
    order = np.lexsort((times, inside))
    times, inside = times[order], inside[order]
    on = np.cumsum(_changes(sets)[order], dtype=np.int16)
    del order
    # Between points at the same time the combination may be impossible; it lasts no time.
    lasts = np.flatnonzero((inside[1:] == inside[:-1]) & (times[1:] > times[:-1]))
    result = np.zeros((groups, 1 << len(sets)), np.int64)
    np.add.at(result, (inside[lasts], on[lasts]), times[lasts + 1] - times[lasts])
    return result


def _changes(sets: Sequence[Intervals]) -> NDArray[np.int16]:
    """Return starts and ends of intervals, for each set at its own bit."""
    return np.concatenate(
        [
            np.full(len(intervals), sign << bit, np.int16)
            for bit, intervals in enumerate(sets)
            for sign in (1, -1)
        ]
    )


def inner_ns(start_ns: Integers, end_ns: Integers, around: Integers) -> NDArray[np.int64]:
    """Return how much of each interval is covered by those directly inside it, clipped to it.

    ``around`` is the row of the directly enclosing interval. It is negative if no interval counts
    as enclosing, because it runs elsewhere. No interval ends before it starts.
    """
    rows = np.flatnonzero(around >= 0)
    above = around[rows]
    start = np.clip(start_ns[rows], start_ns[above], end_ns[above])
    end = np.clip(end_ns[rows], start_ns[above], end_ns[above])
    covered = union(start, end, above)
    return sums(covered.length_ns, covered.group, len(start_ns))


def latest_ns(start_ns: Sequence[int], end_ns: Sequence[int]) -> list[int]:
    """Return how long each interval was the latest started one of those active.

    Of several that started together it is the shortest, of equal ones the first. Every moment that
    any interval covers thus belongs to one of them. This iterates in Python, for the few that
    overlap.
    """
    order = sorted(range(len(start_ns)), key=lambda i: (start_ns[i], -end_ns[i], -i))
    own, going_on, at = [0] * len(start_ns), list[int](), 0
    for i in [*order, -1]:
        until = start_ns[i] if i >= 0 else max(end_ns, default=0)
        while going_on and at < until:
            latest = going_on[-1]
            spent = max(0, min(end_ns[latest], until) - at)
            own[latest] += spent
            at += spent
            if end_ns[latest] <= at:
                going_on.pop()
        at = max(at, until)
        going_on.append(i)
    return own


class CoveredTime(msgspec.Struct, array_like=True):
    """Time covered by intervals that come in the order of their starts."""

    until_ns: int = 0
    """Time up to which everything is counted already."""
    covered_ns: int = 0

    def add(self, start_ns: int, end_ns: int) -> None:
        """Add the next interval; one that ends before it starts covers nothing."""
        self.covered_ns += max(0, end_ns - max(start_ns, self.until_ns))
        self.until_ns = max(self.until_ns, end_ns)


def nearest_rank(count: Count, percent: int) -> Count:
    """Return the index of a quantile in ``count`` sorted values.

    It is ``ceil(count * percent / 100) - 1``: always one of the values, never between two.
    """
    return (count * percent + 99) // 100 - 1


def _running_maximum(values: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the largest value so far in each group.

    Rows of a group must be adjacent, and groups ascend.
    """
    highest, back = values.copy(), 1
    # Each round looks back twice as far, as long as any group is that long.
    while back < len(group) and (same := group[back:] == group[:-back]).any():
        np.maximum(highest[back:], highest[:-back], out=highest[back:], where=same)
        back *= 2
    return highest


def _wide(values: Integers) -> NDArray[np.int64]:
    return values.astype(np.int64, copy=False)
