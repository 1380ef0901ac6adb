"""Distributions of the user's histograms: merging across processes, and buckets to export."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from otel_mlperf.journal.layout import HISTOGRAM_SCALE
from otel_mlperf.otlp.histogram import MAX_BUCKETS, Buckets, ExplicitBuckets, ExponentialBuckets
from otel_mlperf.otlp.metric_encoding import Exemplar  # noqa: TC001 - msgspec reads it

_BOUNDS: Final = tuple(2.0**i for i in range(-10, 21))
"""Explicit bucket bounds: powers of two, because these are also bounds of the exponential
buckets."""


class Distribution(Struct):
    """Distribution of a histogram's values: sum, extremes, counts by exponential bucket index."""

    sum: float = 0.0
    zeros: int = 0
    min: float | None = None
    max: float | None = None
    counts: dict[int, int] = {}
    exemplar: Exemplar | None = None

    @property
    def count(self) -> int:
        """Return the number of values in the distribution."""
        return self.zeros + sum(self.counts.values())

    def plus(self, other: Distribution) -> Distribution:
        """Return the distribution of the values of both distributions, with the newer exemplar."""
        counts = dict(self.counts)
        for index, count in other.counts.items():
            counts[index] = counts.get(index, 0) + count
        minima = [value for value in (self.min, other.min) if value is not None]
        maxima = [value for value in (self.max, other.max) if value is not None]
        examples = [value for value in (self.exemplar, other.exemplar) if value is not None]
        return Distribution(
            self.sum + other.sum,
            self.zeros + other.zeros,
            min(minima, default=None),
            max(maxima, default=None),
            counts,
            max(examples, key=lambda value: value.time_ns, default=None),
        )

    def buckets(self, *, explicit: bool = False) -> Buckets:
        """Return the buckets to export: explicit, or at most MAX_BUCKETS exponential buckets."""
        if explicit:
            return self._explicit()
        counts, scale = self.counts, HISTOGRAM_SCALE
        while counts and max(counts) - min(counts) >= MAX_BUCKETS:
            counts, scale = _halved(counts), scale - 1
        offset = min(counts, default=0)
        span = max(counts, default=-1) - offset + 1 if counts else 0
        return ExponentialBuckets(
            count=self.count,
            sum=self.sum,
            min=self.min,
            max=self.max,
            scale=scale,
            zero_count=self.zeros,
            offset=offset,
            counts=[counts.get(offset + i, 0) for i in range(span)],
        )

    def _explicit(self) -> ExplicitBuckets:
        counts = [0] * (len(_BOUNDS) + 1)
        counts[0] = self.zeros
        for index, count in self.counts.items():
            # A bucket ends at 2**((index + 1) / 8): count it in the explicit bucket with that end.
            exponent = -(-(index + 1) >> HISTOGRAM_SCALE)
            counts[min(max(exponent + 10, 0), len(_BOUNDS))] += count
        return ExplicitBuckets(
            count=self.count, sum=self.sum, min=self.min, max=self.max, bounds=_BOUNDS,
            counts=counts,
        )  # fmt: skip


def _halved(counts: dict[int, int]) -> dict[int, int]:
    halved: dict[int, int] = {}
    for index, count in counts.items():
        halved[index >> 1] = halved.get(index >> 1, 0) + count
    return halved


class SeriesTotal(Struct):
    """Total of one metric series in a process or rank; a histogram also has its distribution."""

    value: float = 0.0
    distribution: Distribution | None = None

    def plus(self, other: SeriesTotal) -> SeriesTotal:
        """Return the sum of this total and ``other``, the total of another process."""
        values = other.distribution
        if values is not None and self.distribution is not None:
            values = self.distribution.plus(values)
        return SeriesTotal(self.value + other.value, values or self.distribution)
