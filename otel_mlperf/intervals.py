"""How long was at least one of them going on, and how long several at once?

Exact integers throughout: sets of intervals are sorted once, and nothing is walked in Python. A
*group* (a stream, a device, a parent) is a number; intervals of different groups never meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.integer[Any]]


class Intervals(NamedTuple):
    """Intervals that neither overlap nor touch, by group and start."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    group: NDArray[np.int64]
    first: NDArray[np.intp]
    """Which of the intervals that were given opens it; of a gap, which one ends it."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def length_ns(self) -> NDArray[np.int64]:
        """How long each is."""
        return self.end_ns - self.start_ns


def union(start_ns: Integers, end_ns: Integers, group: Integers) -> Intervals:
    """The time that at least one interval of a group covers.

    An interval that ends before it starts covers nothing.
    """
    order = np.lexsort((start_ns, group))
    start, inside = start_ns[order].astype(np.int64), group[order].astype(np.int64)
    end = np.maximum(end_ns[order].astype(np.int64), start)
    if not len(start):
        return Intervals(start, end, inside, order)
    reach = _running_maximum(end, inside)
    opens = np.ones(len(start), bool)
    opens[1:] = (start[1:] > reach[:-1]) | (inside[1:] != inside[:-1])
    last = np.append(np.flatnonzero(opens)[1:], len(start)) - 1
    return Intervals(start[opens], reach[last], inside[opens], order[opens])


def gaps(covered: Intervals) -> Intervals:
    """What lies between the intervals of each group."""
    same = covered.group[1:] == covered.group[:-1]
    return Intervals(
        covered.end_ns[:-1][same],
        covered.start_ns[1:][same],
        covered.group[1:][same],
        covered.first[1:][same],
    )


def sums(values: Integers, group: Integers, groups: int) -> NDArray[np.int64]:
    """The sum of the values of each group."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, values.astype(np.int64))
    return total


def shared(sets: Sequence[Intervals], groups: int) -> NDArray[np.int64]:
    """How long each combination of the sets was going on in each group.

    Column ``m`` of the result is the time in which exactly those sets were on whose bits are set in
    ``m``; column 0, in which none was, counts only the time between others.
    """
    times = np.concatenate([part for one in sets for part in (one.start_ns, one.end_ns)])
    inside = np.concatenate([part for one in sets for part in (one.group, one.group)])
    change = np.concatenate(
        [
            np.full(len(one), sign << bit, np.int64)
            for bit, one in enumerate(sets)
            for sign in (1, -1)
        ]
    )
    order = np.lexsort((times, inside))
    times, inside, on = times[order], inside[order], np.cumsum(change[order])
    # Between points at the same time the combination may be none at all; it lasts no time.
    lasts = np.flatnonzero((inside[1:] == inside[:-1]) & (times[1:] > times[:-1]))
    result = np.zeros((groups, 1 << len(sets)), np.int64)
    np.add.at(result, (inside[lasts], on[lasts]), times[lasts + 1] - times[lasts])
    return result


def _running_maximum(values: NDArray[np.int64], group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The largest value so far in each group; rows of a group stand together, groups ascend."""
    sorted_values, rank = np.unique(values, return_inverse=True)
    _, dense = np.unique(group, return_inverse=True)
    # One number that is larger for every later group, so that none reaches into the next.
    keyed = dense.astype(np.int64) * len(sorted_values) + rank
    highest: NDArray[np.int64] = sorted_values[np.maximum.accumulate(keyed) % len(sorted_values)]
    return highest
