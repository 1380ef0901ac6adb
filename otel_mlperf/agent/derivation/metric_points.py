"""How do the series of a rank become metric points?

Each new series starts with a zero point in front of its first value: Prometheus' ``rate()`` cannot
see what the first point of a series adds. Totals that began elsewhere do not: what came together
before is no increase. Readings bear the time at which they were read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.names import Metric
from otel_mlperf.otlp.metric_encoding import (
    Data,
    ExponentialPoint,
    ExponentialPoints,
    GaugePoints,
    HistogramPoint,
    HistogramPoints,
    MetricData,
    NumberPoint,
    SumPoints,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.agent.model.agent_state import MetricSeries

_METRICS: Final = {metric.name: metric for metric in names.METRICS}
_BEFORE_NS: Final = 1_000_000
"""How far a zero point lies in front of the first value."""


class Export:
    """Collects the points of one resource; ``points`` counts them."""

    def __init__(self, start_ns: int, now_ns: int) -> None:
        self._start_ns = min(start_ns, now_ns - _BEFORE_NS)
        self._now_ns = now_ns
        self.points = 0

    def collect(self, series: Iterable[MetricSeries], user: dict[str, Metric]) -> list[MetricData]:
        """All metrics of the given series; ``user`` describes those that ``names`` does not."""
        by_metric: dict[str, list[MetricSeries]] = {}
        for member in series:
            if member.gone and not member.sent:
                continue
            by_metric.setdefault(member.metric, []).append(member)
        return [
            self._metric(_METRICS.get(name) or user.get(name) or _user_gauge(name), members)
            for name, members in by_metric.items()
        ]

    def _metric(self, metric: Metric, members: list[MetricSeries]) -> MetricData:
        data = self._data(metric, members)
        self.points += len(data.points)
        for series in members:
            series.sent = True
            series.exemplars = []
        return MetricData(metric.name, metric.unit, metric.meaning, data)

    def _data(self, metric: Metric, members: list[MetricSeries]) -> Data:
        if metric.instrument == "histogram":
            return _histogram([point for series in members for point in self._buckets(series)])
        if metric.instrument == "gauge":
            return GaugePoints([self._gauge(series) for series in members])
        points = []
        for series in members:
            time_ns, value = self._now(series)
            if not series.sent and metric.instrument == "counter" and not series.start_ns:
                points.append(self._number(series, time_ns - _BEFORE_NS, 0.0))
            points.append(self._number(series, time_ns, value))
        return SumPoints(points, monotonic=metric.instrument == "counter")

    def _now(self, series: MetricSeries) -> tuple[int, float | None]:
        """When it had its value, which is None where it has none any more."""
        if series.gone:
            return self._now_ns, None
        return series.read_ns or self._now_ns, series.value

    def _gauge(self, series: MetricSeries) -> NumberPoint:
        time_ns, value = self._now(series)
        return NumberPoint(attributes=series.labels, time_ns=time_ns, value=value)

    def _number(self, series: MetricSeries, time_ns: int, value: float | None) -> NumberPoint:
        start_ns = series.start_ns or min(self._start_ns, time_ns)
        return NumberPoint(
            attributes=series.labels, start_ns=start_ns, time_ns=time_ns, value=value
        )

    def _buckets(self, series: MetricSeries) -> list[HistogramPoint | ExponentialPoint]:
        buckets = series.buckets
        if buckets is None:
            return []
        point = buckets.point(series.labels, self._start_ns, self._now_ns, series.exemplars)
        if series.sent:
            return [point]
        empty = type(buckets)()
        return [empty.point(series.labels, self._start_ns, self._now_ns - _BEFORE_NS), point]


def _histogram(points: Sequence[HistogramPoint | ExponentialPoint]) -> Data:
    exponential = [p for p in points if isinstance(p, ExponentialPoint)]
    if exponential:
        return ExponentialPoints(exponential)
    return HistogramPoints([p for p in points if isinstance(p, HistogramPoint)])


def _user_gauge(name: str) -> Metric:
    return Metric(name, "", "gauge", "Value as last logged.")
