"""Quantiles of exponential histograms, single or merged, and their error.

A quantile is computed as Prometheus computes it in a native histogram. The bucket that contains it
is known. Inside that bucket the values are assumed to be uniform in the logarithm.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from otel_mlperf.otlp.histogram import MAX_BUCKETS, ExponentialBuckets

if TYPE_CHECKING:
    from collections.abc import Iterable


def merged(parts: Iterable[ExponentialBuckets]) -> ExponentialBuckets:
    """Merge histograms into one of all values, equal to recording the values one by one."""
    total = ExponentialBuckets()
    by_scale: dict[int, dict[int, int]] = {}
    for part in parts:
        total.min = min((v for v in (total.min, part.min) if v is not None), default=None)
        total.max = max((v for v in (total.max, part.max) if v is not None), default=None)
        total.count += part.count
        total.sum += part.sum
        total.zero_count += part.zero_count
        # There may be hundreds of thousands: they are converted to one scale when all are known.
        counts = by_scale.setdefault(part.scale, {})
        for index, count in enumerate(part.counts, part.offset):
            if count:
                counts[index] = counts.get(index, 0) + count
    filled = {scale: counts for scale, counts in by_scale.items() if counts}
    if filled:
        _fill(total, filled)
    return total


def _fill(total: ExponentialBuckets, by_scale: dict[int, dict[int, int]]) -> None:
    """Add counts by scale and index to at most the maximum number of buckets; none is empty."""
    scale = min(by_scale)
    low = min(min(counts) >> (own - scale) for own, counts in by_scale.items())
    high = max(max(counts) >> (own - scale) for own, counts in by_scale.items())
    halvings = 0
    while (high >> halvings) - (low >> halvings) >= MAX_BUCKETS:
        halvings += 1
    total.scale, total.offset = scale - halvings, low >> halvings
    total.counts = [0] * ((high >> halvings) - total.offset + 1)
    for own, counts in by_scale.items():
        for index, count in counts.items():
            total.counts[(index >> (own - total.scale)) - total.offset] += count


def quantile(buckets: ExponentialBuckets, share: float) -> float | None:
    """Return the value that ``share`` (0.0 to 1.0) of all do not exceed; None if empty.

    It is in the bucket of the true one, and never below the minimum or above the maximum value.
    """
    if not buckets.count or buckets.min is None or buckets.max is None:
        return None
    rank = share * buckets.count - buckets.zero_count
    if rank <= 0:
        return buckets.min
    for index, count in enumerate(buckets.counts, buckets.offset):
        if rank <= count and count:
            value = math.exp2((index + rank / count) / 2**buckets.scale)
            return min(max(value, buckets.min), buckets.max)
        rank -= count
    return buckets.max


def error_ratio(buckets: ExponentialBuckets) -> float:
    """Return the maximum relative error of a quantile: the relative width of a bucket."""
    return math.exp2(2**-buckets.scale) - 1
