"""Conversion of encoded metric requests to metrics of the OpenTelemetry SDK (``MetricsData``).

The metrics are the same as those sent to an OTLP server, with two differences:

- If a request contains two points of a series (the zero and the first value), only the later point
  is passed on, because some backends accept only one point per series and request.
- Histograms have explicit buckets, which are the SDK's default. Prometheus' reader and Azure
  Monitor's exporter do not support exponential buckets.
"""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.sdk import metrics as sdk
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.metrics.export import AggregationTemporality
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_mlperf import names
from otel_mlperf.otlp.deltas import SentTotal, growth

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.sdk.metrics.export import Metric, MetricsData

_FIRST_POWER: Final = -10
BOUNDS: Final = tuple(2.0**power for power in range(_FIRST_POWER, 7))
"""Explicit bounds for durations from a millisecond to a minute. They are also bounds of exponential
buckets, as powers of two, so that no count must be estimated (unless the values span more than 160
powers of two)."""
_LABELS: Final = ("service.name", names.RUN_NAME, names.RANK, names.HOST_NAME)
"""Resource attributes that become labels, because they distinguish the series on a scraped page."""
_NO_VALUE: Final = 1
_Key = tuple[tuple[str, Any], ...]
_Series = tuple["Metric", dict[_Key, Any]]


class MetricGroup(NamedTuple):
    """Metrics of one request, which has one resource and one scope."""

    resource: Resource
    scope: InstrumentationScope
    metrics: list[Metric]
    gone: set[tuple[str, _Key]]
    """Metric name and attributes of ended series, which no point of the SDK can express."""


def metrics_data(groups: Iterable[MetricGroup]) -> MetricsData:
    """Return the groups as input for an SDK exporter; metrics without points are omitted."""
    made = []
    for group in groups:
        metrics = [metric for metric in group.metrics if metric.data.data_points]
        scoped = export.ScopeMetrics(group.scope, metrics, names.SCHEMA_URL)
        made.append(export.ResourceMetrics(group.resource, [scoped], names.SCHEMA_URL))
    return export.MetricsData(made)


class MetricConverter:
    """Converter to SDK metrics with the temporality that one ``exporter`` of the SDK prefers.

    The input is cumulative. For an exporter that prefers deltas, the previous point of each series
    is stored. If the agent starts during a run, the first point of a series is only the baseline:
    the growth since the last delivery is omitted, not estimated.
    """

    def __init__(self, exporter: Any) -> None:
        temporality = getattr(exporter, "_preferred_temporality", None) or {}
        delta = AggregationTemporality.DELTA
        self._deltas = {
            "sum": temporality.get(sdk.Counter) is delta,
            "histogram": temporality.get(sdk.Histogram) is delta,
        }
        self._last: dict[tuple[bytes, str, _Key], SentTotal] = {}

    def convert(self, body: bytes) -> MetricGroup:
        """Return the metrics of an encoded request with one resource and one scope."""
        (group,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
        (scoped,) = group.scope_metrics
        scope = InstrumentationScope(scoped.scope.name, scoped.scope.version, scoped.schema_url)
        resource = Resource(_plain(group.resource.attributes), group.schema_url)
        source = group.resource.SerializeToString()
        gone: set[tuple[str, _Key]] = set()
        metrics = [self._metric(metric, source, gone) for metric in scoped.metrics]
        return MetricGroup(resource, scope, metrics, gone)

    def _metric(self, metric: Any, source: bytes, gone: set[tuple[str, _Key]]) -> Metric:
        kind = metric.WhichOneof("data")
        encoded = getattr(metric, kind)
        kind = kind.removeprefix("exponential_")
        is_delta = self._deltas.get(kind, False) and getattr(encoded, "is_monotonic", True)
        points: dict[_Key, Any] = {}
        for each in encoded.data_points:
            attributes = _plain(each.attributes)
            key = tuple(attributes.items())
            if each.flags & _NO_VALUE:
                gone.add((metric.name, key))
                continue
            point = (_histogram if kind == "histogram" else _number)(attributes, each)
            if is_delta:
                point = self._since_last((source, metric.name, key), point)
            if point is not None:
                points[key] = point  # replaces an earlier point of the series (its zero)
        data = _data(kind, [*points.values()], encoded, is_delta=is_delta)
        return export.Metric(metric.name, metric.description, metric.unit, data)

    def _since_last(self, series: tuple[bytes, str, _Key], point: Any) -> Any:
        now = _total_of(point)
        before, self._last[series] = self._last.get(series), now
        if before is None:
            return None
        grown, start_ns = growth(now, before), before.time_ns
        if isinstance(point, export.NumberDataPoint):
            new = replace(point, value=grown.value, start_time_unix_nano=start_ns)
            return new if grown.value >= 0 else None
        if grown.count < 0:
            return None
        # Minimum and maximum of the values since the previous point are unknown.
        return replace(
            point, count=grown.count, sum=grown.value, min=None, max=None,
            bucket_counts=tuple(grown.counts), start_time_unix_nano=start_ns,
        )  # fmt: skip


def _total_of(point: Any) -> SentTotal:
    total = SentTotal(time_ns=point.time_unix_nano)
    if isinstance(point, export.NumberDataPoint):
        total.value = point.value
    else:
        total.value, total.count, total.counts = point.sum, point.count, [*point.bucket_counts]
    return total


class ScrapedMetrics:
    """Latest points of all resources, for a ``reader`` of the SDK that is scraped.

    A scraped page has no resources. The attributes that distinguish resources become labels.
    """

    def __init__(self, reader: Any) -> None:
        self._latest: dict[_Key, tuple[MetricGroup, dict[str, _Series]]] = {}
        self._lock = Lock()
        reader._set_collect_callback(lambda *_, **__: self._newest())

    def put(self, group: MetricGroup) -> None:
        """Store a group's points in place of older points of the same series; drop ended series."""
        about = group.resource.attributes
        labels = {name: about[name] for name in _LABELS if name in about}
        with self._lock:
            # The key is the labels: a restarted rank has a new resource, but the same series.
            _, by_name = self._latest.setdefault(tuple(labels.items()), (group, {}))
            for metric in group.metrics:
                points = by_name[metric.name][1] if metric.name in by_name else {}
                for point in metric.data.data_points:
                    own: Any = point.attributes
                    points[tuple(own.items())] = replace(point, attributes=labels | own)
                by_name[metric.name] = metric, points
            for name, key in group.gone:
                by_name[name][1].pop(key, None)

    def _newest(self) -> MetricsData:
        with self._lock:
            return metrics_data([
                group._replace(metrics=[_with_points(*series) for series in by_name.values()])
                for group, by_name in self._latest.values()
            ])  # fmt: skip


def _with_points(metric: Metric, points: dict[_Key, Any]) -> Metric:
    data: Any = metric.data
    return replace(metric, data=replace(data, data_points=[*points.values()]))


def _data(kind: str, points: list[Any], encoded: Any, *, is_delta: bool) -> export.DataT:
    temporality = AggregationTemporality.DELTA if is_delta else AggregationTemporality.CUMULATIVE
    if kind == "gauge":
        return export.Gauge(points)
    if kind == "sum":
        return export.Sum(points, temporality, encoded.is_monotonic)
    return export.Histogram(points, temporality)


def _number(attributes: dict[str, Any], point: Any) -> export.NumberDataPoint:
    start: Any = point.start_time_unix_nano or None  # 0 for a gauge
    return export.NumberDataPoint(attributes, start, point.time_unix_nano, _value(point))


def _histogram(attributes: dict[str, Any], point: Any) -> export.HistogramDataPoint:
    is_explicit = hasattr(point, "explicit_bounds")
    counts = tuple(point.bucket_counts) if is_explicit else _explicit_counts(point)
    bounds = tuple(point.explicit_bounds) if is_explicit else BOUNDS
    minimum: Any = point.min if point.HasField("min") else None
    maximum: Any = point.max if point.HasField("max") else None
    return export.HistogramDataPoint(
        attributes, point.start_time_unix_nano, point.time_unix_nano, point.count, point.sum,
        counts, bounds, minimum, maximum, _exemplars(point),
    )  # fmt: skip


def _explicit_counts(point: Any) -> tuple[int, ...]:
    """Return the counts of the buckets with ``BOUNDS``; no bound is inside an input bucket."""
    counts = [0] * (len(BOUNDS) + 1)
    counts[0] = point.zero_count
    for index, count in enumerate(point.positive.bucket_counts, point.positive.offset + 1):
        # The bucket's upper bound is 2 ** (index / 2 ** scale): round up to a power of two.
        power = -(-index >> point.scale) if point.scale >= 0 else index << -point.scale
        counts[min(max(power - _FIRST_POWER, 0), len(BOUNDS))] += count
    return tuple(counts)


def _exemplars(point: Any) -> list[sdk.Exemplar]:
    return [
        sdk.Exemplar(
            {}, _value(each), each.time_unix_nano,
            int.from_bytes(each.span_id, "big"), int.from_bytes(each.trace_id, "big"),
        )
        for each in point.exemplars
    ]  # fmt: skip


def _plain(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(each) for each in value.array_value.values)
    return getattr(value, kind) if kind else None
