"""One row of the findings table: a condition, its threshold and who is notified.

A row has up to three parts: a *live warning* (the row is a ``Rule``), a Prometheus *alert*, and the
judgement of a *finished run*. Its threshold is stored here once, for all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.findings.finding import Severity
    from otel_mlperf.names import Metric

MINUTE_S: Final = 60.0
_VALUE: Final = re.compile(r"\{value[^}]*\}")
Group = Literal["training", "hardware", "otel_mlperf"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSeries:
    """A metric, or those of its series whose labels have one of the given values."""

    metric: Metric
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """What Prometheus evaluates, and what it tells people; texts are its templates."""

    expr: str
    """PromQL without the comparison at its end; line feeds are where it may be broken."""
    summary: str
    description: str
    what_to_do: str
    dashboard: str = ""
    """Its uid: it opens on the run; empty: none shows more."""
    group: Group = "hardware"
    after: str = ""
    """For how long it must hold, as Prometheus writes it; empty: it wakes somebody at once."""
    because: str = ""
    """What to know before one changes it."""
    threshold: float | None = None
    """Where minutes of Prometheus need another one than the row's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingRow:
    """One condition: a value is above or below the threshold."""

    id: str
    """Of findings: ``data_loading``."""
    name: str
    """Of the warning and the alert: in words run together."""
    severity: Severity
    threshold: float
    comparison: Literal["above", "below"] = "above"
    matters: float = 0.0
    """Share of a mean step that it must come to, besides, to be worth a word."""
    summary: str = ""
    """What is the case, with ``{value}`` and labels such as ``{hw_name}`` filled in."""
    action: str = ""
    """What to do about it."""
    alert: Alert | None = None
    of_ended: bool = False
    """Whether a finished run is judged by it."""

    def holds(self, value: float) -> bool:
        """Whether ``value`` is beyond the threshold."""
        return value > self.threshold if self.comparison == "above" else value < self.threshold

    def told(self, value: float, labels: Mapping[str, str]) -> str:
        """What is the case, with the value and the labels that it is the case of."""
        words = {label.replace(".", "_"): text for label, text in labels.items()}
        return self.summary.format(value=value, **words)

    def written(self, value: float) -> str:
        """A value as the summary writes it; empty where that writes none."""
        field = _VALUE.search(self.summary)
        return field[0].format(value=value).replace("%", " %") if field else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(FindingRow):
    """A row that is judged live: ``measured`` (divided by ``per``) is above or below."""

    measured: MeasuredSeries
    per: MeasuredSeries | None = None
    by: tuple[str, ...] = ()
    """Labels of which each combination is judged for itself; over the others it is the sum."""
    for_s: float = 0.0
    """For how long it must hold."""
    over_s: float = 0.0
    """Not the values are compared, but what they have grown by over so long."""
