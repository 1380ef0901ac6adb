"""Unions, gaps, overlaps and self times of time intervals.

All results are exact integers. Sets of intervals are sorted once, and most functions do not iterate
in Python. A *group* (a stream, a device, a parent) is a number; intervals of different groups never
interact.

Self time is the duration of an interval minus the time covered by the intervals directly inside it.
``inner_ns`` computes the covered time if all intervals are available as columns. ``CoveredTime``
computes the covered time incrementally (in the agent, where child sections end before their
parent). A property test asserts that both are equal.
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
    """Intervals sorted by group and start; intervals of one group neither overlap nor touch."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    group: NDArray[np.int64]
    first: NDArray[np.intp]
    """Index of the original interval that starts each interval or, for a gap, ends the gap."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def length_ns(self) -> NDArray[np.int64]:
        """Return the length of each interval in ns."""
        return self.end_ns - self.start_ns


def union(start_ns: Integers, end_ns: Integers, group: Integers) -> Intervals:
    """Return the time that is covered by at least one interval of a group, as merged intervals.

    An interval that ends before its start covers nothing.
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
    """Return the gaps between the merged intervals of each group."""
    same = covered.group[1:] == covered.group[:-1]
    return Intervals(
        covered.end_ns[:-1][same],
        covered.start_ns[1:][same],
        covered.group[1:][same],
        covered.first[1:][same],
    )


def sums(values: Integers, group: Integers, groups: int) -> NDArray[np.int64]:
    """Return the sum of the values of each group from 0 to ``groups`` - 1, indexed by group."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, _wide(values))
    return total


def shared(sets: Sequence[Intervals], groups: int) -> NDArray[np.int64]:
    """Return per group how long each combination of sets was active at the same time.

    The result has one row per group. Column ``m`` is the time in which exactly the sets whose bits
    are set in ``m`` were active. Column 0 (no set was active) contains only gaps between intervals.
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
    # Between changes at the same time the combination may be invalid, but has no duration.
    lasts = np.flatnonzero((inside[1:] == inside[:-1]) & (times[1:] > times[:-1]))
    result = np.zeros((groups, 1 << len(sets)), np.int64)
    np.add.at(result, (inside[lasts], on[lasts]), times[lasts + 1] - times[lasts])
    return result


def _changes(sets: Sequence[Intervals]) -> NDArray[np.int16]:
    """Return +1 for each start and -1 for each end of an interval, shifted to its set's bit."""
    return np.concatenate(
        [
            np.full(len(intervals), sign << bit, np.int16)
            for bit, intervals in enumerate(sets)
            for sign in (1, -1)
        ]
    )


def inner_ns(start_ns: Integers, end_ns: Integers, around: Integers) -> NDArray[np.int64]:
    """Return how much of each interval is covered by the intervals directly inside it.

    ``around`` contains, per interval, the row of the directly enclosing interval, to which the
    former is clipped. The row is negative if there is no enclosing interval, or only one on another
    track. No interval may end before its start.
    """
    rows = np.flatnonzero(around >= 0)
    above = around[rows]
    start = np.clip(start_ns[rows], start_ns[above], end_ns[above])
    end = np.clip(end_ns[rows], start_ns[above], end_ns[above])
    covered = union(start, end, above)
    return sums(covered.length_ns, covered.group, len(start_ns))


def latest_ns(start_ns: Sequence[int], end_ns: Sequence[int]) -> list[int]:
    """Return how long each interval was the active one that had started last.

    Of several intervals with the same start the shortest is preferred, of equal intervals the
    first, so that each covered moment belongs to exactly one interval. This function iterates in
    Python, and is meant for small numbers of intervals.
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
    """Running total of the time covered by intervals, which are added in order of start times."""

    until_ns: int = 0
    """Time up to which covered time was counted."""
    covered_ns: int = 0

    def add(self, start_ns: int, end_ns: int) -> None:
        """Add the next interval; an interval that ends before its start covers nothing."""
        self.covered_ns += max(0, end_ns - max(start_ns, self.until_ns))
        self.until_ns = max(self.until_ns, end_ns)


def nearest_rank(count: Count, percent: int) -> Count:
    """Return the index of a percentile in ``count`` sorted values, by the nearest-rank method.

    The index is ``ceil(count * percent / 100) - 1``; values are not interpolated.
    """
    return (count * percent + 99) // 100 - 1


def _running_maximum(values: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the running maximum of the values in each group; ``group`` must be sorted."""
    highest, back = values.copy(), 1
    # Each round doubles the distance, until no group is longer.
    while back < len(group) and (same := group[back:] == group[:-back]).any():
        np.maximum(highest[back:], highest[:-back], out=highest[back:], where=same)
        back *= 2
    return highest


def _wide(values: Integers) -> NDArray[np.int64]:
    return values.astype(np.int64, copy=False)
