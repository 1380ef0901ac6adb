"""Metric points of delta temporality: the growth of each series since its previous export.

The previous totals are part of the agent's state. A replay therefore makes the same requests again.
The sum of all deltas is the cumulative total, less requests that are counted as lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.agent.model.agent_state import MetricSeries, SentTotal
from otel_mlperf.otlp.metric_encoding import (
    Data,
    ExponentialPoint,
    HistogramPoint,
    NumberPoint,
    SumPoints,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.names import Metric
    from otel_mlperf.otlp.endpoint_settings import Temporality

_Point = NumberPoint | HistogramPoint | ExponentialPoint
_NOTHING: Final = SentTotal()


def find_deltas(
    metric: Metric, members: Sequence[MetricSeries], data: Data, temporality: Temporality
) -> Data:
    """Return the data of one metric in a preferred temporality, and store the new totals.

    Args:
        metric: a gauge or an up-down counter is not changed, as the specification requires.
        members: its series.
        data: their cumulative points.
        temporality: with ``lowmemory``, totals that are counted outside the agent stay cumulative.
    """
    if metric.instrument not in ("counter", "histogram"):
        return data
    if metric.name == names.ITEMS.name and isinstance(data, SumPoints):
        # Derived from answers of servers, which no replay repeats. It may fall.
        return SumPoints(data.points, monotonic=False)
    if temporality == "lowmemory" and any(series.is_observed for series in members):
        return data
    # A new series has an empty point in front of its first: a delta needs none.
    newest = {id(point.attributes): point for point in data.points}
    pairs = ((series, newest.get(id(series.labels))) for series in members)
    points = [point for series, now in pairs if now and (point := _growth(series, now))]
    return replace(data, points=points, is_delta=True)


def _growth(series: MetricSeries, point: _Point) -> _Point | None:
    """Return the point of the time since the previous export; None if there is no such point."""
    before, now = series.sent_total, _total_of(series, point)
    if now is None or (before is not None and point.time_ns <= before.time_ns):
        return None
    series.sent_total = now
    if before is None:
        # The part of a total from before it was followed is no increase.
        return None if series.start_ns else point
    start_ns = before.time_ns
    if now.start_ns != before.start_ns or now.count < before.count:
        before = _NOTHING
    if isinstance(point, NumberPoint):
        now.value = max(now.value, before.value)
        return replace(point, start_ns=start_ns, value=now.value - before.value)
    return replace(
        point,
        start_ns=start_ns,
        sum=now.value - before.value,
        count=now.count - before.count,
        # The extremes of the time since then are not known.
        min=None,
        max=None,
        **_buckets(point, before),
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


def _buckets(
    point: HistogramPoint | ExponentialPoint, before: SentTotal
) -> dict[str, int | tuple[int, ...]]:
    """Return the fields of a histogram's buckets, less those of an earlier, maybe finer one."""
    counts = [*point.counts]
    if isinstance(point, HistogramPoint):
        for place, count in enumerate(before.counts):
            counts[place] -= count
        return {"counts": tuple(counts)}
    for index, count in enumerate(before.counts, before.offset):
        counts[(index >> (before.scale - point.scale)) - point.offset] -= count
    return {"counts": tuple(counts), "zero_count": point.zero_count - before.zeros}
