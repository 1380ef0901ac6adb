"""Histograms with exponential or explicit buckets: recording, merging and quantiles of durations.

Both kinds accept NumPy arrays, and are msgspec Structs, so that they can be encoded as snapshots.
Values are in seconds. Negative values, which result only from clock errors, count as zero. NaN and
infinite values are ignored.

Quantiles are computed as Prometheus does for native histograms: within the bucket that contains the
quantile, the logarithms of the values are assumed to be uniformly distributed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from otel_mlperf.otlp.metric_encoding import Exemplar, ExponentialPoint, HistogramPoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

MAX_SCALE = 20
MAX_BUCKETS = 160
FINEST_SENT = 8
"""Finest scale of the points that are sent, because Prometheus has no finer buckets.

Prometheus (3.15) merges finer buckets, and then moves counts next to empty buckets by one bucket,
so that the next point appears to be a restart of the histogram."""
DEFAULT_BOUNDS = tuple(0.001 * 2**i for i in range(17))
"""Default bounds of explicit buckets in seconds, from a millisecond to about a minute."""

_SMALLEST = float(np.finfo(np.float64).tiny)


class ExponentialBuckets(Struct, tag="exponential"):
    """Base-2 exponential histogram of the OpenTelemetry specification.

    The histogram starts at the finest scale, and halves the resolution whenever the values would
    need more than ``MAX_BUCKETS`` buckets.
    """

    count: int = 0
    sum: float = 0.0
    min: float | None = None
    max: float | None = None
    scale: int = MAX_SCALE
    zero_count: int = 0
    offset: int = 0
    counts: list[int] = field(default_factory=list)

    def record(self, values: NDArray[np.float64]) -> None:
        """Add values in seconds to the histogram."""
        values = _clean(values)
        if not len(values):
            return
        _total(self, values)
        positive = values[values > 0]
        self.zero_count += len(values) - len(positive)
        if len(positive):
            self._count(_indices(positive))

    def _count(self, indices: NDArray[np.int64]) -> None:
        """Add values, given as bucket indices at ``MAX_SCALE``."""
        low = int(indices.min()) >> (MAX_SCALE - self.scale)
        high = int(indices.max()) >> (MAX_SCALE - self.scale)
        self._make_room(low, high)
        indices = (indices >> (MAX_SCALE - self.scale)) - self.offset
        # One iteration per distinct bucket, not per value: at most 160.
        for place, more in zip(*np.unique(indices, return_counts=True), strict=True):
            self.counts[place] += int(more)

    def _make_room(self, low: int, high: int) -> None:
        """Extend the buckets to the indices ``low`` to ``high``, at a lower scale if required."""
        if self.counts:
            low = min(low, self.offset)
            high = max(high, self.offset + len(self.counts) - 1)
        # Shifting indices by one merges pairs of buckets exactly: the values are not needed.
        halvings = 0
        while (high >> halvings) - (low >> halvings) >= MAX_BUCKETS:
            halvings += 1
        self._downscale(halvings)
        low, high = low >> halvings, high >> halvings
        before = self.offset - low if self.counts else 0
        after = high - low + 1 - before - len(self.counts)
        self.counts = [0] * before + self.counts + [0] * after
        self.offset = low

    def _downscale(self, halvings: int) -> None:
        if not halvings:
            return
        offset = self.offset >> halvings
        last = (self.offset + len(self.counts) - 1) >> halvings
        counts = [0] * (last - offset + 1) if self.counts else []
        for place, count in enumerate(self.counts, self.offset):
            counts[(place >> halvings) - offset] += count
        self.scale, self.offset, self.counts = self.scale - halvings, offset, counts

    def point(
        self,
        attributes: Mapping[str, object],
        start_ns: int,
        time_ns: int,
        exemplars: Sequence[Exemplar] = (),
    ) -> ExponentialPoint:
        """Return the current histogram as a point to send, at scale ``FINEST_SENT`` or coarser."""
        sent = replace(self)
        sent._downscale(max(0, self.scale - FINEST_SENT))
        return ExponentialPoint(
            attributes=attributes,
            start_ns=start_ns,
            time_ns=time_ns,
            count=sent.count,
            sum=sent.sum,
            min=sent.min,
            max=sent.max,
            scale=sent.scale,
            zero_count=sent.zero_count,
            offset=sent.offset,
            counts=tuple(sent.counts),
            exemplars=tuple(exemplars),
        )


class ExplicitBuckets(Struct, tag="explicit"):
    """Histogram with explicit bounds; a value equal to a bound is in the bucket below it."""

    count: int = 0
    sum: float = 0.0
    min: float | None = None
    max: float | None = None
    bounds: tuple[float, ...] = DEFAULT_BOUNDS
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def record(self, values: NDArray[np.float64]) -> None:
        """Add values in seconds to the histogram."""
        values = _clean(values)
        if not len(values):
            return
        _total(self, values)
        places = np.searchsorted(self.bounds, values, side="left")
        for place, more in zip(*np.unique(places, return_counts=True), strict=True):
            self.counts[place] += int(more)

    def point(
        self,
        attributes: Mapping[str, object],
        start_ns: int,
        time_ns: int,
        exemplars: Sequence[Exemplar] = (),
    ) -> HistogramPoint:
        """Return the current histogram as a point to send."""
        return HistogramPoint(
            attributes=attributes,
            start_ns=start_ns,
            time_ns=time_ns,
            count=self.count,
            sum=self.sum,
            min=self.min,
            max=self.max,
            bounds=self.bounds,
            counts=tuple(self.counts),
            exemplars=tuple(exemplars),
        )


Buckets = ExponentialBuckets | ExplicitBuckets


def _clean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    values = np.asarray(values, np.float64)
    return np.maximum(values[np.isfinite(values)], 0.0)


def _total(buckets: Buckets, values: NDArray[np.float64]) -> None:
    buckets.count += len(values)
    buckets.sum += float(values.sum())
    buckets.min = _min_of(buckets.min, float(values.min()))
    buckets.max = _max_of(buckets.max, float(values.max()))


def _min_of(before: float | None, other: float | None) -> float | None:
    return min((value for value in (before, other) if value is not None), default=None)


def _max_of(before: float | None, other: float | None) -> float | None:
    return max((value for value in (before, other) if value is not None), default=None)


def _indices(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return each value's bucket index at ``MAX_SCALE``.

    ``index >> n`` is the index at scale ``MAX_SCALE - n``. Only the logarithm of the mantissa is
    computed, which makes the index accurate to 1e-10 of a bucket. A power of two is the upper bound
    of a bucket, and belongs to that bucket.
    """
    mantissa, exponent = np.frexp(np.maximum(values, _SMALLEST))
    size = 1 << MAX_SCALE
    inside = np.floor(np.log2(mantissa * 2) * size).astype(np.int64)
    inside = np.where(mantissa == 0.5, -1, np.minimum(inside, size - 1))
    return (exponent.astype(np.int64) - 1) * size + inside


def merged(parts: Iterable[ExponentialBuckets]) -> ExponentialBuckets:
    """Return one histogram of the values of all parts, as if all were recorded in one."""
    total = ExponentialBuckets()
    by_scale: dict[int, dict[int, int]] = {}
    for part in parts:
        total.min = min((v for v in (total.min, part.min) if v is not None), default=None)
        total.max = max((v for v in (total.max, part.max) if v is not None), default=None)
        total.count += part.count
        total.sum += part.sum
        total.zero_count += part.zero_count
        # There may be hundreds of thousands of parts: convert counts to one scale only at the end.
        counts = by_scale.setdefault(part.scale, {})
        for index, count in enumerate(part.counts, part.offset):
            if count:
                counts[index] = counts.get(index, 0) + count
    filled = {scale: counts for scale, counts in by_scale.items() if counts}
    if filled:
        _fill(total, filled)
    return total


def _fill(total: ExponentialBuckets, by_scale: dict[int, dict[int, int]]) -> None:
    """Set scale and buckets of ``total``; ``by_scale`` maps a scale to counts by bucket index."""
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
    """Return the quantile ``share`` (0.0 to 1.0) of the values; None if the histogram is empty.

    The result is in the same bucket as the true quantile, and between minimum and maximum value.
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
    """Return the maximum relative error of a quantile, which is the relative width of a bucket."""
    return math.exp2(2**-buckets.scale) - 1
