"""Encoding of metric points as the bytes of an ``ExportMetricsServiceRequest``.

Points are cumulative or deltas. The first point of a new cumulative series should be zero at the
series' start time, because Prometheus' ``rate()`` ignores the value of a series' first point.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from otel_mlperf.otlp import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_DELTA = 1
_CUMULATIVE = 2
_NO_VALUE = 1
"""Flag of a point without a value, at which Prometheus ends the series (stale marker)."""
_Point = TypeVar("_Point")


class Exemplar(Struct, frozen=True):
    """Exemplar: a measured value with the span in which it was measured."""

    value: float
    time_ns: int
    trace_id: bytes
    span_id: int


class NumberPoint(Struct, frozen=True, kw_only=True):
    """Point with the value of a counter or gauge at one time."""

    attributes: Mapping[str, object]
    start_ns: int = 0
    """Start of the series; 0 for gauges, which have no start."""
    time_ns: int
    value: float | None
    """Value, sent as an integer if it is an ``int``; None ends the series."""
    exemplars: Sequence[Exemplar] = ()


class HistogramPoint(Struct, frozen=True, kw_only=True):
    """Point with a distribution over explicit buckets, each including its upper bound."""

    attributes: Mapping[str, object]
    start_ns: int
    time_ns: int
    count: int
    sum: float
    min: float | None
    max: float | None
    bounds: Sequence[float]
    counts: Sequence[int]
    """Counts of the buckets; there is one bucket more than ``bounds``."""
    exemplars: Sequence[Exemplar] = ()


class ExponentialPoint(Struct, frozen=True, kw_only=True):
    """Point with a distribution over buckets ``(base**i, base**(i+1)]`` (base: 2**2**-scale)."""

    attributes: Mapping[str, object]
    start_ns: int
    time_ns: int
    count: int
    sum: float
    min: float | None
    max: float | None
    scale: int
    zero_count: int
    offset: int
    """Index ``i`` of the first bucket in ``counts``."""
    counts: Sequence[int]
    exemplars: Sequence[Exemplar] = ()


class GaugePoints(Struct, frozen=True):
    """Points of a gauge, each valid at its time."""

    points: Sequence[NumberPoint]


class SumPoints(Struct, frozen=True):
    """Points of a sum, each with the total since the point's own start time."""

    points: Sequence[NumberPoint]
    monotonic: bool = True
    is_delta: bool = False
    """Whether each point starts at the time of the previous point."""


class HistogramPoints(Struct, frozen=True):
    """Points of a histogram with explicit buckets."""

    points: Sequence[HistogramPoint]
    is_delta: bool = False


class ExponentialPoints(Struct, frozen=True):
    """Points of a histogram with exponential buckets (a native histogram in Prometheus)."""

    points: Sequence[ExponentialPoint]
    is_delta: bool = False


Data = GaugePoints | SumPoints | HistogramPoints | ExponentialPoints


class MetricData(Struct, frozen=True):
    """Points of one metric of one resource."""

    name: str
    unit: str
    description: str
    data: Data


def encode_metrics(
    resource: bytes,
    scope: bytes,
    metrics: Sequence[MetricData],
    schema_url: str = "",
    scope_schema_url: str | None = None,
) -> bytes:
    """Encode a whole request; all arguments except ``metrics`` are as in ``wire.envelope``."""
    items = b"".join(wire.block(2, _metric(metric)) for metric in metrics)
    before, after = wire.envelope(resource, scope, len(items), schema_url, scope_schema_url)
    return before + items + after


def _metric(metric: MetricData) -> bytes:
    head = wire.text(1, metric.name) + wire.text(2, metric.description) + wire.text(3, metric.unit)
    match metric.data:
        case GaugePoints(points):
            return head + wire.block(5, _points(_number, points))
        case SumPoints(points, monotonic, is_delta):
            kind = _temporality(is_delta) + wire.number(3, monotonic)
            return head + wire.block(7, _points(_number, points) + kind)
        case HistogramPoints(points, is_delta):
            return head + wire.block(9, _points(_histogram, points) + _temporality(is_delta))
        case ExponentialPoints(points, is_delta):
            return head + wire.block(10, _points(_exponential, points) + _temporality(is_delta))


def _temporality(is_delta: bool) -> bytes:
    return wire.number(2, _DELTA if is_delta else _CUMULATIVE)


def _points(encode: Callable[[_Point], bytes], points: Sequence[_Point]) -> bytes:
    return b"".join(wire.block(1, encode(point)) for point in points)


# The numbers below are field numbers of opentelemetry/proto/metrics/v1. Those of times, count and
# sum are the same for all kinds of points; those of attributes, exemplars and extremes are not.


def _number(point: NumberPoint) -> bytes:
    return (
        wire.encode_attributes(point.attributes, 7)
        + _times(point.start_ns, point.time_ns)
        + (wire.number(8, _NO_VALUE) if point.value is None else _value(4, point.value))
        + _exemplars(5, point.exemplars)
    )


def _histogram(point: HistogramPoint) -> bytes:
    counts = struct.pack(f"<{len(point.counts)}Q", *point.counts)
    bounds = struct.pack(f"<{len(point.bounds)}d", *point.bounds)
    return (
        wire.encode_attributes(point.attributes, 9)
        + _times(point.start_ns, point.time_ns)
        + _total(point)
        + wire.block(6, counts)
        + wire.block(7, bounds)
        + _exemplars(8, point.exemplars)
        + _optional(11, point.min)
        + _optional(12, point.max)
    )


def _exponential(point: ExponentialPoint) -> bytes:
    buckets = wire.signed(1, point.offset) + wire.block(2, wire.packed_varints(point.counts))
    return (
        wire.encode_attributes(point.attributes, 1)
        + _times(point.start_ns, point.time_ns)
        + _total(point)
        + wire.signed(6, point.scale)
        + wire.fixed64(7, point.zero_count)
        + (wire.block(8, buckets) if point.counts else b"")
        + _exemplars(11, point.exemplars)
        + _optional(12, point.min)
        + _optional(13, point.max)
    )


def _times(start_ns: int, time_ns: int) -> bytes:
    start = wire.fixed64(2, start_ns) if start_ns else b""
    return start + wire.fixed64(3, time_ns)


def _total(point: HistogramPoint | ExponentialPoint) -> bytes:
    return wire.fixed64(4, point.count) + wire.double(5, point.sum)


def _optional(field: int, value: float | None) -> bytes:
    return b"" if value is None else wire.double(field, value)


def _value(double_field: int, value: float) -> bytes:
    # as_int is field 6 of both points and exemplars.
    if isinstance(value, int) and value in wire.INT64:
        return wire.fixed64(6, value)
    return wire.double(double_field, float(value))


def _exemplars(field: int, exemplars: Sequence[Exemplar]) -> bytes:
    return b"".join(wire.block(field, _exemplar(exemplar)) for exemplar in exemplars)


def _exemplar(exemplar: Exemplar) -> bytes:
    return (
        wire.fixed64(2, exemplar.time_ns)
        + _value(3, exemplar.value)
        + wire.block(4, exemplar.span_id.to_bytes(8, "big"))
        + wire.block(5, exemplar.trace_id)
    )
