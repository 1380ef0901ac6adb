"""Encoded metrics contain exactly the original points."""

from __future__ import annotations

import numpy as np
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric

from otel_mlperf.otlp import wire
from otel_mlperf.otlp.histogram import ExplicitBuckets, ExponentialBuckets
from otel_mlperf.otlp.metric_encoding import (
    Data,
    Exemplar,
    ExponentialPoints,
    GaugePoints,
    HistogramPoints,
    MetricData,
    NumberPoint,
    SumPoints,
    encode_metrics,
)

CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
EXEMPLAR = Exemplar(0.5, 7, bytes(range(16)), 0xAB00000000000001)


def sent(data: Data) -> Metric:
    """The metric as a receiver reads it."""
    metric = MetricData("ml.training.step.duration", "s", "Time of one step.", data)
    request = encode_metrics(
        wire.encode_resource({"service.name": "digits"}), wire.encode_scope("otel_mlperf"), [metric]
    )
    (group,) = ExportMetricsServiceRequest.FromString(request).resource_metrics
    (found,) = group.scope_metrics[0].metrics
    assert group.resource.attributes[0].value.string_value == "digits"
    assert group.scope_metrics[0].scope.name == "otel_mlperf"
    assert (found.name, found.unit, found.description) == (metric.name, "s", "Time of one step.")
    return found


def labels(point) -> dict[str, str]:
    """The attributes of a point."""
    return {pair.key: pair.value.string_value for pair in point.attributes}


def check_exemplar(point) -> None:
    """The point leads to the span of ``EXEMPLAR``."""
    (found,) = point.exemplars
    assert (found.as_double, found.time_unix_nano) == (0.5, 7)
    assert (found.trace_id, found.span_id) == (bytes(range(16)), b"\xab" + bytes(6) + b"\x01")


@pytest.mark.parametrize("value", [0, -3, 2**62, 0.5, -1e300])
def test_gauge_values_keep_their_type(value):
    """A whole number is sent as an integer, another as a double, and no start time is claimed."""
    points = [NumberPoint(attributes={"ml.phase": "train"}, time_ns=9, value=value)]

    (point,) = sent(GaugePoints(points)).gauge.data_points

    found = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
    assert (found, type(found)) == (value, type(value))
    assert (point.start_time_unix_nano, point.time_unix_nano) == (0, 9)
    assert labels(point) == {"ml.phase": "train"}


@pytest.mark.parametrize("monotonic", [True, False])
def test_sums_are_cumulative_since_their_start(monotonic):
    """A receiver knows that a sum is a total, since when, and whether it can fall."""
    points = [
        NumberPoint(attributes={}, start_ns=1, time_ns=2, value=0, exemplars=[EXEMPLAR]),
        NumberPoint(attributes={"a": "b"}, start_ns=1, time_ns=2, value=3),
    ]

    found = sent(SumPoints(points, monotonic)).sum

    assert (found.aggregation_temporality, found.is_monotonic) == (CUMULATIVE, monotonic)
    assert [point.as_int for point in found.data_points] == [0, 3]
    assert {point.start_time_unix_nano for point in found.data_points} == {1}
    check_exemplar(found.data_points[0])


def test_exponential_points_arrive_with_their_exemplars():
    """Scale, offset, counts, extremes and the way to the trace survive the encoding."""
    buckets = ExponentialBuckets()
    buckets.record(np.array([0.0, 0.001, 0.5, 0.5, 30.0]))

    found = sent(ExponentialPoints([buckets.point({"a": "b"}, 1, 2, [EXEMPLAR])]))

    (point,) = found.exponential_histogram.data_points
    assert found.exponential_histogram.aggregation_temporality == CUMULATIVE
    assert (point.count, point.sum, point.zero_count) == (5, buckets.sum, 1)
    assert (point.min, point.max, point.scale) == (0.0, 30.0, buckets.scale)
    assert (point.positive.offset, list(point.positive.bucket_counts)) == (
        buckets.offset,
        buckets.counts,
    )
    assert (point.start_time_unix_nano, point.time_unix_nano, labels(point)) == (1, 2, {"a": "b"})
    check_exemplar(point)


def test_explicit_points_arrive_with_their_exemplars():
    """Bounds, counts, extremes and the way to the trace survive the encoding."""
    buckets = ExplicitBuckets()
    buckets.record(np.array([0.001, 0.5, 100.0]))

    found = sent(HistogramPoints([buckets.point({"a": "b"}, 1, 2, [EXEMPLAR])]))

    (point,) = found.histogram.data_points
    assert found.histogram.aggregation_temporality == CUMULATIVE
    assert list(point.explicit_bounds) == list(buckets.bounds)
    assert list(point.bucket_counts) == buckets.counts
    assert (point.count, point.sum, point.min, point.max) == (3, buckets.sum, 0.001, 100.0)
    assert (point.start_time_unix_nano, point.time_unix_nano, labels(point)) == (1, 2, {"a": "b"})
    check_exemplar(point)


def test_a_zero_histogram_has_no_extremes():
    """The first point of a series claims no smallest and no largest value."""
    found = sent(ExponentialPoints([ExponentialBuckets().point({}, 1, 2)]))

    (point,) = found.exponential_histogram.data_points
    assert (point.count, point.HasField("min"), point.HasField("max")) == (0, False, False)
