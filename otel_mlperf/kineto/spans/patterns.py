"""What repeats in a trace, and which occurrence shows it whole?

A pattern is a name under a chain of names: the same operator in the same place of another layer or
another step. Its example is the first occurrence, with everything below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.forest import Forest

NEVER: Final = np.int64(1 << 62)
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


def patterns(
    forest: Forest, key: NDArray[np.int64], group: NDArray[np.int32]
) -> NDArray[np.uint64]:
    """A number for the pattern of each event: its key, those above it, and its group."""
    own = _scrambled(key.astype(np.uint64) + np.uint64(1))
    mark = np.zeros(len(forest), np.uint64)
    for rows in forest.levels:
        above = forest.parent[rows]
        top = above == NONE
        start = _scrambled(group[rows].astype(np.uint64) ^ _ODD)
        mark[rows] = _scrambled(np.where(top, start, mark[above]) + own[rows])
    return mark


def example_ranks(
    forest: Forest,
    pattern: NDArray[np.uint64],
    group: NDArray[np.int32],
    times: tuple[NDArray[np.int64], NDArray[np.int64]],
    largest: NDArray[np.int64],
) -> NDArray[np.int64]:
    """How many events are shown once an event is shown as part of an example; NEVER for none.

    Args:
        forest: which event is above which.
        pattern: of each event.
        group: of each event; each group is ranked by itself.
        times: start and duration of each event.
        largest: events that an example of each group may have.
    """
    start, duration = times
    order = np.argsort(start, kind="stable")
    _, first, member, count = np.unique(
        pattern[order], return_index=True, return_inverse=True, return_counts=True
    )
    spent = np.zeros(len(first), np.int64)
    np.add.at(spent, member, duration[order])
    size = forest.sums(np.ones(len(forest), np.int64))
    example = order[first]
    fits = (count > 1) & (size[example] <= largest[group[example]])
    example, spent = example[fits], spent[fits]
    best = np.lexsort((start[example], -spent, group[example]))
    example = example[best]
    ranks = np.full(len(forest), NEVER)
    ranks[example] = _running(size[example], group[example])
    return forest.smallest_above(ranks)


def _running(size: NDArray[np.int64], group: NDArray[np.int32]) -> NDArray[np.int64]:
    """The sum of sizes up to each item within its group; items are sorted by group."""
    total = np.cumsum(size)
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    before = total[begins] - size[begins]
    running: NDArray[np.int64] = total - np.repeat(before, np.diff(begins, append=len(group))) - 1
    return running


def _scrambled(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return bits ^ (bits >> np.uint64(32))
