"""Which metric series does a rank have, and what is in them?

Histograms see every step and section, whatever is kept as spans. A series belongs to the rank, not
to a process: forked children of a rank add to the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.agent.state import RankState, Series
from otel_mlperf.otlp.histogram import Buckets, ExplicitBuckets, ExponentialBuckets
from otel_mlperf.otlp.metrics import Exemplar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from otel_mlperf.names import Metric

MOST_SERIES: Final = 2000
"""Series of one rank; what comes later is counted in one marked ``otel.metric.overflow``."""
_MOST_EXEMPLARS: Final = 4


class Meter:
    """Adds to the series of one rank."""

    def __init__(self, rank: RankState, *, explicit: bool = False) -> None:
        self._rank = rank
        self._kind: type[Buckets] = ExplicitBuckets if explicit else ExponentialBuckets

    def record(self, metric: Metric, labels: dict[str, str], values_ns: NDArray[np.int64]) -> None:
        """Durations into a histogram in seconds."""
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
        """A duration whose span is kept: Unix time, trace id, span id."""
        time_ns, trace, span = exemplar
        series = self._series(metric.name, labels)
        series.exemplars.append(Exemplar(value_ns / 1e9, time_ns, trace, span))
        del series.exemplars[:-_MOST_EXEMPLARS]

    def add(self, metric: Metric, labels: dict[str, str], value: float) -> None:
        """To a counter."""
        self._series(metric.name, labels).value += value

    def set(self, metric: str, labels: dict[str, str], value: float) -> None:
        """A gauge, or the total of a counter that somebody else keeps."""
        series = self._series(metric, labels)
        series.value, series.gone = value, False

    def drop(self, metric: Metric) -> None:
        """Says that a gauge has no value, unless one is set before the next export."""
        for series in self._rank.series.values():
            if series.metric == metric.name:
                series.gone = True

    def _series(self, metric: str, labels: dict[str, str]) -> Series:
        key = metric + "\0" + "\0".join(labels.values())
        found = self._rank.series.get(key)
        if found is None:
            if len(self._rank.series) >= MOST_SERIES:
                key, labels = metric + "\0overflow", {names.OVERFLOW: "true"}
                if key in self._rank.series:
                    return self._rank.series[key]
            found = self._rank.series[key] = Series(metric, labels)
        return found
