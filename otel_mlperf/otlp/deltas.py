"""Growth of a cumulative series between two exports, for points of delta temporality."""

from __future__ import annotations

import msgspec


class SentTotal(msgspec.Struct, array_like=True):
    """Total of a series at an export."""

    start_ns: int = 0
    """Start of the series at that time: another start now means that the series restarted."""
    time_ns: int = 0
    value: float = 0.0
    """For a histogram the sum of its values."""
    count: int = 0
    """For a histogram, like the following fields."""
    zeros: int = 0
    scale: int = 0
    offset: int = 0
    counts: list[int] = []


def growth(now: SentTotal, before: SentTotal) -> SentTotal:
    """Return the growth since an earlier total, whose buckets may be finer."""
    counts = [*now.counts]
    for index, count in enumerate(before.counts, before.offset):
        counts[(index >> (before.scale - now.scale)) - now.offset] -= count
    return msgspec.structs.replace(
        now,
        value=now.value - before.value,
        count=now.count - before.count,
        zeros=now.zeros - before.zeros,
        counts=counts,
    )
