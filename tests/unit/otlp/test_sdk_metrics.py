"""Metrics for exporters of the SDK: one point a series, in the kind that the exporter prefers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk import metrics as sdk
from opentelemetry.sdk.metrics.export import AggregationTemporality as Temporality
from opentelemetry.sdk.metrics.export import Histogram
from prometheus_client import CollectorRegistry, generate_latest

from otel_mlperf import names
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.histogram import ExplicitBuckets, ExponentialBuckets
from otel_mlperf.otlp.metric_encoding import (
    Exemplar,
    ExponentialPoints,
    GaugePoints,
    HistogramPoints,
    MetricData,
    NumberPoint,
    SumPoints,
    encode_metrics,
)
from otel_mlperf.otlp.sdk_metrics import BOUNDS, MetricConverter, ScrapedMetrics
from otel_mlperf.otlp.span_content import OWN_SCOPE

RESOURCE = {"service.name": "digits", names.RANK: 3}
LABELS = {"lang": "de"}


class Plain:
    """An exporter without preferences."""


class Delta:
    def __init__(self):
        delta = Temporality.DELTA
        self._preferred_temporality = {sdk.Counter: delta, sdk.Histogram: delta}


def request(*metrics, resource=RESOURCE):
    return encode_metrics(wire.encode_resource(resource), OWN_SCOPE.encode(), metrics)


def number(value, time_ns, start_ns=1, labels=LABELS):
    return NumberPoint(attributes=labels, start_ns=start_ns, time_ns=time_ns, value=value)


def counter(*points, monotonic=True, name="steps"):
    return MetricData(name, "{step}", "Steps.", SumPoints(points, monotonic))


def gauge(*points):
    return MetricData("level", "1", "Level.", GaugePoints(points))


def histogram(values, time_ns=9, kind=ExponentialBuckets, exemplars=()):
    buckets = kind()
    buckets.record(np.array(values, np.float64))
    point = buckets.point(LABELS, 1, time_ns, exemplars)
    holder = ExponentialPoints if kind is ExponentialBuckets else HistogramPoints
    return MetricData("duration", "s", "Duration.", holder([point]))


def data_of(exporter, *metrics):
    return [metric.data for metric in MetricConverter(exporter).convert(request(*metrics)).metrics]


def test_zero_with_which_a_series_begins_is_left_out():
    """Backends that take one point of a series in a request get its value."""
    other = {"lang": "en"}
    (data,) = data_of(Plain(), counter(number(0.0, 8), number(5, 9), number(7, 9, labels=other)))

    assert [(point.attributes, point.value) for point in data.data_points] == [
        (LABELS, 5), (other, 7),
    ]  # fmt: skip
    assert (data.is_monotonic, data.aggregation_temporality) == (True, Temporality.CUMULATIVE)
    assert [point.start_time_unix_nano for point in data.data_points] == [1, 1]


def test_series_that_has_no_value_any_more_has_no_point():
    """The SDK has none for that."""
    group = MetricConverter(Plain()).convert(request(gauge(number(None, 9, start_ns=0))))
    assert group.metrics[0].data.data_points == []
    assert group.gone == {("level", (("lang", "de"),))}


@given(st.lists(st.just(0.0) | st.floats(1e-9, 1e9), min_size=1, max_size=200))
def test_explicit_counts_are_exact(values):
    """Powers of two are bounds of both kinds, so that no value changes its side."""
    (data,) = data_of(Plain(), histogram(values))
    (point,) = data.data_points

    places = np.searchsorted(BOUNDS, values, side="left")
    assert isinstance(data, Histogram)
    assert [*point.bucket_counts] == [*np.bincount(places, minlength=len(BOUNDS) + 1)]
    assert (point.count, point.explicit_bounds) == (len(values), BOUNDS)
    assert (point.min, point.max) == (min(values), max(values))


@given(st.integers(-4, 0))
def test_bounds_are_exact_at_any_resolution(exponent):
    """A value at a bound is below it."""
    (data,) = data_of(Plain(), histogram([2.0**exponent] * 3 + [1e-9, 1e9]))
    counts = dict(zip(BOUNDS, data.data_points[0].bucket_counts, strict=False))
    assert counts[2.0**exponent] == 3


def test_exemplars_lead_to_spans():
    """As over OTLP."""
    exemplar = Exemplar(0.25, 5, bytes(range(16)), 7)
    (data,) = data_of(Plain(), histogram([0.25, 3.0], exemplars=[exemplar]))
    (kept,) = data.data_points[0].exemplars
    assert (kept.value, kept.span_id) == (0.25, 7)
    assert kept.trace_id == int.from_bytes(bytes(range(16)), "big")


def test_explicit_histograms_stay_as_they_are():
    """Where the variable of the standard asks for them."""
    (data,) = data_of(Plain(), histogram([0.25], kind=ExplicitBuckets))
    assert data.data_points[0].explicit_bounds == ExplicitBuckets().bounds


def test_deltas_sum_to_the_total():
    """For an exporter that prefers them; gauges and counts that fall stay cumulative."""
    converter = MetricConverter(Delta())
    sums, counts, starts = [], np.zeros(len(BOUNDS) + 1), []
    values = []
    first = MetricData(
        "duration", "s", "", ExponentialPoints([ExponentialBuckets().point(LABELS, 1, 1)])
    )
    converter.convert(request(first, counter(number(0.0, 1))))
    for time_ns, total in ((10, 5), (20, 5), (30, 12)):
        values += [total / 7]
        up_down = counter(number(4, time_ns), monotonic=False, name="queue")
        body = request(counter(number(total, time_ns)), histogram(values, time_ns), up_down)
        made, durations, queue = (m.data for m in converter.convert(body).metrics)
        sums.append(made.data_points[0].value)
        starts.append(made.data_points[0].start_time_unix_nano)
        counts += durations.data_points[0].bucket_counts
        assert durations.data_points[0].min is None
        assert made.aggregation_temporality is Temporality.DELTA
        assert queue.aggregation_temporality is Temporality.CUMULATIVE

    assert (sums, starts) == ([5, 0, 7], [1, 10, 20])
    assert [*counts] == [*np.bincount(np.searchsorted(BOUNDS, values), minlength=len(BOUNDS) + 1)]


@pytest.mark.parametrize("after", [3, 50])
def test_delta_without_what_was_before_is_absent(after):
    """A first point in the middle of a run, and one after a reset, are where a sum starts."""
    converter = MetricConverter(Delta())
    for value in (50, after) if after < 50 else (50,):
        (metric,) = converter.convert(request(counter(number(value, value)))).metrics
        assert metric.data.data_points == []
    (metric,) = converter.convert(request(counter(number(after + 2, 99)))).metrics
    assert metric.data.data_points[0].value == 2


def test_scraped_page_has_the_newest_of_all_ranks():
    """Told apart by labels; a series that has ended leaves it, one that was not sent stays."""
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    scraped, converter = ScrapedMetrics(reader), MetricConverter(reader)

    def put(*metrics, rank):
        scraped.put(converter.convert(request(*metrics, resource=RESOURCE | {names.RANK: rank})))

    put(counter(number(0.0, 1), number(5, 2)), gauge(number(1, 2)), histogram([0.3]), rank=0)
    put(counter(number(6, 2)), rank=1)
    # Restarted: another process has the same series.
    again = RESOURCE | {names.RANK: 0, "process.pid": 7}
    scraped.put(converter.convert(request(counter(number(8, 2)), resource=again)))
    put(counter(number(9, 3)), gauge(number(None, 3)), rank=0)
    page = generate_latest(registry).decode()

    lines = [line for line in page.splitlines() if line.startswith("steps_total{")]
    assert [line.rpartition(" ")[2] for line in lines] == ["9.0", "6.0"]
    assert ['ml_distributed_rank="0"' in line for line in lines] == [True, False]
    assert all('service_name="digits"' in line for line in lines)
    assert "level_ratio{" not in page
    assert 'le="0.25"' in page
    reader.shutdown()
