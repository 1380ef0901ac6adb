"""Growth of cumulative metric series between two exports, for points with delta temporality."""

from __future__ import annotations

import msgspec


class SentTotal(msgspec.Struct, array_like=True):
    """Cumulative value of a metric series at an export."""

    start_ns: int = 0
    """Start of the series; if it differs at the next export, the series was restarted."""
    time_ns: int = 0
    value: float = 0.0
    """Value of a counter, or sum of the values of a histogram."""
    count: int = 0
    """Number of values, only for histograms, like all following fields."""
    zeros: int = 0
    scale: int = 0
    offset: int = 0
    counts: list[int] = []


def growth(now: SentTotal, before: SentTotal) -> SentTotal:
    """Return a series' growth from ``before`` to ``now``; buckets of ``before`` can be finer."""
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
