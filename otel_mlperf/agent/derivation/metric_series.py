"""Metric series of a rank or the node, and conversion of series to metric points.

Histograms count every step and section, whether sampled as spans or not. A series belongs to a
rank, not to a process: forked children of a rank add to the same series.

Each new series starts with a zero point before its first value: otherwise Prometheus' ``rate()``
would miss the first increase. Totals that are counted outside the agent have no zero point, because
they include earlier counts. Points of sensor readings have the time of the reading.

A point of delta temporality is the growth of the series since the previous export. The previous
totals are part of the agent's state, so that a replay creates the same requests. The sum of all
deltas is the cumulative total, except for requests that are counted as lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.agent.model.agent_state import JOURNAL, AgentState, MetricSeries, RankState
from otel_mlperf.names import Metric
from otel_mlperf.otlp.deltas import SentTotal, growth
from otel_mlperf.otlp.histogram import Buckets, ExplicitBuckets, ExponentialBuckets
from otel_mlperf.otlp.metric_encoding import (
    Data,
    Exemplar,
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
    from collections.abc import Callable, Collection, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from otel_mlperf.agent.model.events import SensorReading
    from otel_mlperf.otlp.endpoint_settings import Temporality

MOST_SERIES: Final = 2000
"""Maximum number of series of one rank. Values of further series are added to one series per metric
that has the label ``otel.metric.overflow``."""
_MAX_EXEMPLARS: Final = 4
_ROUNDING: Final = 0.9
"""If a total falls to no less than this share, it has not restarted, but was rounded by the
kernel."""
_OURS: Final = "otel_mlperf."
_METRICS: Final = {metric.name: metric for metric in names.METRICS}
_COUNTERS: Final = {metric.name for metric in names.METRICS if metric.instrument == "counter"}
_BEFORE_NS: Final = 1_000_000
"""Time from the zero point of a series to its first value."""
_Point = NumberPoint | HistogramPoint | ExponentialPoint
_NOTHING: Final = SentTotal()


class Meter:
    """Meter that updates the metric series of one rank or of the node."""

    def __init__(self, owner: RankState | AgentState, *, explicit: bool = False) -> None:
        self._owner = owner
        self._kind: type[Buckets] = ExplicitBuckets if explicit else ExponentialBuckets

    def record(self, metric: Metric, labels: dict[str, str], values_ns: NDArray[np.int64]) -> None:
        """Record durations, given in ns, in a histogram whose unit is seconds."""
        series = self._series(metric.name, labels)
        if series.buckets is None:
            series.buckets = self._kind()
        series.buckets.record(values_ns / 1e9)

    def exemplar(
        self,
        metric: Metric,
        labels: dict[str, str],
        value_ns: int,
        exemplar: tuple[int, bytes, int],
    ) -> None:
        """Add an exemplar of a duration: Unix time in ns, trace id and span id of its span."""
        time_ns, trace, span = exemplar
        series = self._series(metric.name, labels)
        series.exemplars.append(Exemplar(value_ns / 1e9, time_ns, trace, span))
        del series.exemplars[:-_MAX_EXEMPLARS]

    def add(self, metric: Metric, labels: dict[str, str], value: float) -> None:
        """Add ``value`` to a counter."""
        self._series(metric.name, labels).value += value

    def set(self, metric: str, labels: dict[str, str], value: float) -> None:
        """Set a gauge, or a counter to a total that another component accumulates."""
        series = self._series(metric, labels)
        series.value, series.gone = value, False

    def raise_to(self, metric: Metric, labels: dict[str, str], value: float) -> None:
        """Set a gauge that is a maximum to ``value``, if ``value`` is higher than before."""
        series = self._series(metric.name, labels)
        series.value = max(series.value, value)

    def put(self, metric: str, labels: dict[str, str], value: float) -> None:
        """Set a series that a process accumulates in journal cells.

        The process itself limits the number of such series.
        """
        series = self._series(metric, labels, is_bounded=True)
        series.value, series.gone, series.source = value, False, JOURNAL

    def put_buckets(
        self, metric: str, labels: dict[str, str], buckets: Buckets, exemplars: Iterable[Exemplar]
    ) -> None:
        """Set a histogram that a process accumulates in journal cells, and add newer exemplars."""
        series = self._series(metric, labels, is_bounded=True)
        series.buckets, series.source = buckets, JOURNAL
        for exemplar in exemplars:
            if exemplar.time_ns > series.exemplar_ns:
                series.exemplar_ns = exemplar.time_ns
                series.exemplars.append(exemplar)
                del series.exemplars[:-_MAX_EXEMPLARS]

    def drop(self, metric: Metric) -> None:
        """Mark all series of a gauge as ended, except those that are set before the next export."""
        for series in self._owner.series.values():
            if series.metric == metric.name:
                series.gone = True

    def drop_source(self, source: str) -> None:
        """Mark all series of a sensor source as ended, until the next ``read`` of each series."""
        for series in self._owner.series.values():
            if series.source == source:
                series.gone = True

    def read(
        self, source: str, reading: SensorReading, time_ns: int, counters: Collection[str] = ()
    ) -> None:
        """Set a sensor reading's series; ``counters`` names counters not defined in ``names``.

        The number of sensor series is not limited, because the hardware bounds it.
        """
        series = self._series(reading.name, reading.labels, is_bounded=True)
        value = reading.value
        if reading.name in _COUNTERS or reading.name in counters:
            value = _follow(series, value, time_ns)
        series.value, series.gone = value, False
        series.source, series.read_ns = source, time_ns

    def _series(
        self, metric: str, labels: dict[str, str], *, is_bounded: bool = False
    ) -> MetricSeries:
        known = self._owner.series
        key = "\0".join((metric, *labels, *labels.values()))
        series = known.get(key)
        if series is None:
            # Only series from rows are limited, because a program can create any number of section
            # names.
            if not is_bounded and sum(not other.source for other in known.values()) >= MOST_SERIES:
                key, labels = metric + "\0overflow", {names.OVERFLOW: "true"}
                if key in known:
                    return known[key]
            series = known[key] = MetricSeries(metric, labels)
        return series


def _follow(series: MetricSeries, value: float, time_ns: int) -> float:
    """Return the value to set for a total that is counted outside the agent; set its start time.

    The start time becomes ``time_ns`` at the first reading, because the earlier growth is unknown,
    and after each restart of the total. Totals of this package start at 0 with the run.
    """
    if not series.source:
        series.start_ns = 0 if series.metric.startswith(_OURS) else time_ns
    elif value < series.value:
        # The source has rounded down. A smaller value would look like a counter reset and cause a
        # huge rate.
        if value > series.value * _ROUNDING:
            return series.value
        series.start_ns = time_ns
    return value


class Export:
    """Conversion of all series of one resource (a rank or the node) to metric points."""

    def __init__(
        self,
        start_ns: int,
        now_ns: int,
        is_sent: Callable[[Exemplar], bool] = lambda _: True,
        temporality: Temporality = "cumulative",
    ) -> None:
        """Initialize an empty export. ``is_sent`` selects the exemplars to include."""
        self._start_ns = min(start_ns, now_ns - _BEFORE_NS)
        self._now_ns, self._is_sent, self._temporality = now_ns, is_sent, temporality
        self.preferred: list[MetricData] = []
        """The collected metrics in the preferred temporality; empty if the preference is
        cumulative."""

    def collect(self, series: Iterable[MetricSeries], user: dict[str, Metric]) -> list[MetricData]:
        """Return the metrics of all ``series``; ``user`` defines those not in module ``names``."""
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
        if self._temporality != "cumulative":
            preferred = _deltas(metric, members, data, self._temporality)
            if preferred.points:
                self.preferred.append(
                    MetricData(metric.name, metric.unit, metric.meaning, preferred)
                )
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
        exemplars = [*filter(self._is_sent, series.exemplars)]
        point = buckets.point(series.labels, self._start_ns, self._now_ns, exemplars)
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
    return Metric(name, "", "gauge", "Last logged value.")


def _deltas(
    metric: Metric, members: Sequence[MetricSeries], data: Data, temporality: Temporality
) -> Data:
    if metric.instrument not in ("counter", "histogram"):
        return data
    if metric.name == names.ITEMS.name and isinstance(data, SumPoints):
        # Depends on server responses, which a replay does not repeat: the total may fall.
        return SumPoints(data.points, monotonic=False)
    if temporality == "lowmemory" and any(series.is_observed for series in members):
        return data
    # Only the last point of each series: the zero point of a new series is not needed for deltas.
    newest = {id(point.attributes): point for point in data.points}
    pairs = ((series, newest.get(id(series.labels))) for series in members)
    points = [point for series, now in pairs if now and (point := _growth(series, now))]
    return replace(data, points=points, is_delta=True)


def _growth(series: MetricSeries, point: _Point) -> _Point | None:
    before, now = series.sent_total, _total_of(series, point)
    if now is None or (before is not None and point.time_ns <= before.time_ns):
        return None
    series.sent_total = now
    if before is None:
        # A total that is counted elsewhere: its growth before the first reading is unknown.
        return None if series.start_ns else point
    start_ns = before.time_ns
    if now.start_ns != before.start_ns or now.count < before.count:
        before = _NOTHING
    if isinstance(point, NumberPoint):
        now.value = max(now.value, before.value)
        return replace(point, start_ns=start_ns, value=growth(now, before).value)
    grown = growth(now, before)
    zero_count = {"zero_count": grown.zeros} if isinstance(point, ExponentialPoint) else {}
    return replace(
        point,
        start_ns=start_ns,
        sum=grown.value,
        count=grown.count,
        counts=tuple(grown.counts),
        # Minimum and maximum since the previous export are unknown.
        min=None,
        max=None,
        **zero_count,
    )


def _total_of(series: MetricSeries, point: _Point) -> SentTotal | None:
    total = SentTotal(start_ns=series.start_ns, time_ns=point.time_ns)
    if isinstance(point, NumberPoint):
        if point.value is None:
            return None
        total.value = point.value
        return total
    total.value, total.count, total.counts = point.sum, point.count, [*point.counts]
    if isinstance(point, ExponentialPoint):
        total.scale, total.offset, total.zeros = point.scale, point.offset, point.zero_count
    return total
