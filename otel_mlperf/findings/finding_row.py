"""Row types of the findings table: a condition, its threshold and who is notified.

A row has up to three uses with the same threshold: a *live warning* (if the row is a ``Rule``), a
Prometheus *alert*, and a finding of a *finished run*.
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
    """A metric, or only the series of the metric that have one of the label values in ``where``."""

    metric: Metric
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """Prometheus alert: an expression, and texts that are Prometheus templates."""

    summary: str
    description: str
    expr: str = ""
    """PromQL without the final comparison, with line feeds where it may be wrapped; empty: derived
    from the series of the rule."""
    labels: tuple[str, ...] = ()
    """Labels that a derived expression preserves, in addition to those of the run and the rule."""
    over: str = ""
    """Time range of a derived expression in Prometheus notation; empty: the default range."""
    dashboard: str = ""
    """Uid of the Grafana dashboard to link, which opens on the run; empty: no link."""
    group: Group = "hardware"
    after: str = ""
    """Minimum duration of the condition in Prometheus notation; empty: it fires immediately."""
    because: str = ""
    """Rationale for the alert, written as a comment into the rules file."""
    threshold: float | None = None
    """Threshold of the alert; None: that of its row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingRow:
    """Row of the findings table: the condition that a value is above or below a threshold."""

    id: str
    """Id of the findings that the row produces, such as ``data_loading``."""
    name: str
    """Name of the warning and the alert, in CamelCase."""
    severity: Severity
    threshold: float
    comparison: Literal["above", "below"] = "above"
    min_step_share: float = 0.0
    """Second condition: the problem costs at least this share of a mean step."""
    summary: str = ""
    """Template of the problem, with ``{value}`` and labels such as ``{hw_name}`` as fields."""
    action: str = ""
    """Recommended action for findings, warnings and the alert."""
    alert: Alert | None = None
    of_ended: bool = False
    """Whether the condition is evaluated on finished runs."""

    def holds(self, value: float) -> bool:
        """Return whether ``value`` is beyond the threshold, in the direction of ``comparison``."""
        return value > self.threshold if self.comparison == "above" else value < self.threshold

    def format_summary(self, value: float, labels: Mapping[str, str]) -> str:
        """Return the summary with ``value`` and ``labels`` (values by name) filled in."""
        values = {label.replace(".", "_"): text for label, text in labels.items()}
        return self.summary.format(value=value, **values)

    def format_value(self, value: float) -> str:
        """Return ``value`` formatted as in the summary; empty if the summary contains no value."""
        field = _VALUE.search(self.summary)
        return field[0].format(value=value).replace("%", " %") if field else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(FindingRow):
    """Row that is also evaluated during a run, on ``measured`` (divided by ``per`` if set)."""

    measured: MeasuredSeries
    per: MeasuredSeries | None = None
    by: tuple[str, ...] = ()
    """Labels whose combinations are evaluated separately; series are summed over all other labels.
    """
    for_s: float = 0.0
    """Minimum duration of the condition in seconds until a warning is given."""
    over_s: float = 0.0
    """Seconds over which growth is compared with the threshold; 0: the value itself is compared."""
