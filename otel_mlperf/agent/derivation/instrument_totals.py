"""What do counters, gauges and histograms come to over all processes of a rank?

A rank's series is the sum over its processes: those that are alive, and what those that have ended
had counted. Gauges are as the process that is read last set them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.agent.model.distribution import SeriesTotal
from otel_mlperf.agent.model.events import SensorReading
from otel_mlperf.journal.layout import MOST_LABEL_SETS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.agent.derivation.cell_values import CellValue
    from otel_mlperf.agent.derivation.metric_series import Meter
    from otel_mlperf.agent.model.agent_state import RankState
    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.names import Metric

_MOST_SERIES = 2 * MOST_LABEL_SETS
"""Of one rank: each process of it keeps to half of that by itself."""


class RankTotals:
    """The series of every rank at one mark."""

    def __init__(self, *, explicit: bool) -> None:
        self._explicit = explicit
        self._found: dict[tuple[str, str], SeriesTotal] = {}
        self._readings: dict[tuple[str, str], list[SensorReading]] = {}

    def publish(self, rank: RankState, meter: Meter, value: CellValue) -> None:
        """Adds one process's series to the rank's."""
        metric = value.metric
        key, labels = place(rank, value)
        total = SeriesTotal(value.value)
        if value.grows:
            before = self._found.get((rank.instance, key)) or rank.totals.get(key, SeriesTotal())
            total = self._found[rank.instance, key] = before.plus(value.total)
        # The process that is read last has the sum of all: its row takes the others' place.
        rows = _rows(metric.name, total)
        self._readings[rank.instance, key] = [
            SensorReading("", name, labels, n) for name, n in rows
        ]
        if total.distribution is None:
            meter.put(metric.name, labels, total.value)
            return
        exemplar = value.distribution.exemplar if value.distribution else None
        buckets = total.distribution.buckets(explicit=self._explicit)
        meter.put_buckets(metric.name, labels, buckets, exemplar)

    def readings(self) -> Iterator[tuple[str, SensorReading]]:
        """For the tables what each series of each rank has come to, once."""
        for (instance, _), of_series in self._readings.items():
            for reading in of_series:
                yield instance, reading


def remember(rank: RankState, value: CellValue) -> None:
    """Keeps what a process had counted that has ended."""
    # Gauges end with their process; sums must not fall when one of several has gone, or the server
    # sees a reset.
    if value.grows:
        key, _ = place(rank, value)
        rank.totals[key] = rank.totals.get(key, SeriesTotal()).plus(value.total)


def place(rank: RankState, value: CellValue) -> tuple[str, dict[str, str]]:
    """Key and labels of the rank's series; beyond the limit those of one marked as overflow."""
    name, labels = value.metric.name, value.labels
    key = series_key(name, labels)
    if labels and key not in rank.places:
        if len(rank.places) >= _MOST_SERIES:
            labels = {names.OVERFLOW: "true"}
            return series_key(name, labels), labels
        rank.places.add(key)
    return key, labels


def instrument_row(meta: JournalMeta, metric: Metric) -> dict[str, Any]:
    """The row of table ``instruments``."""
    return {
        "rank": meta.rank,
        "restart": meta.restart,
        "name": metric.name,
        "unit": metric.unit,
        "kind": metric.instrument,
    }


def series_key(name: str, labels: dict[str, str]) -> str:
    """What tells one series of a rank from all others."""
    return "\0".join((name, *(f"{label}\0{value}" for label, value in labels.items())))


def _rows(name: str, total: SeriesTotal) -> list[tuple[str, float]]:
    distribution = total.distribution
    if distribution is None:
        return [(name, total.value)]
    return [(f"{name}.count", float(distribution.count)), (f"{name}.sum", distribution.sum)]
