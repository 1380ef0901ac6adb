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
    """A metric, or only its series whose labels have one of the given values."""

    metric: Metric
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """Prometheus alert: its expression and its texts, which are Prometheus templates."""

    expr: str
    """PromQL without the final comparison; line feeds are possible line breaks."""
    summary: str
    description: str
    what_to_do: str
    dashboard: str = ""
    """Uid of the dashboard that opens on the run; empty: none shows more."""
    group: Group = "hardware"
    after: str = ""
    """Minimum duration in Prometheus notation; empty: it fires immediately."""
    because: str = ""
    """Rationale to know before changing the alert."""
    threshold: float | None = None
    """Threshold for Prometheus's minutes, if it differs from the row's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingRow:
    """One condition: a value above or below the threshold."""

    id: str
    """Id of the findings: ``data_loading``."""
    name: str
    """Name of the warning and the alert, in CamelCase."""
    severity: Severity
    threshold: float
    comparison: Literal["above", "below"] = "above"
    min_step_share: float = 0.0
    """Additional minimum share of a mean step for the condition to be reported."""
    summary: str = ""
    """The problem, with ``{value}`` and labels such as ``{hw_name}`` to be filled in."""
    action: str = ""
    """Recommended action."""
    alert: Alert | None = None
    of_ended: bool = False
    """Whether it is evaluated on a finished run."""

    def holds(self, value: float) -> bool:
        """Return whether ``value`` is beyond the threshold."""
        return value > self.threshold if self.comparison == "above" else value < self.threshold

    def format_summary(self, value: float, labels: Mapping[str, str]) -> str:
        """Return the summary with the value and the labels filled in."""
        values = {label.replace(".", "_"): text for label, text in labels.items()}
        return self.summary.format(value=value, **values)

    def format_value(self, value: float) -> str:
        """Format a value as in the summary; empty if the summary contains none."""
        field = _VALUE.search(self.summary)
        return field[0].format(value=value).replace("%", " %") if field else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(FindingRow):
    """A row that is evaluated live, on ``measured``, divided by ``per`` if that is set."""

    measured: MeasuredSeries
    per: MeasuredSeries | None = None
    by: tuple[str, ...] = ()
    """Labels of which each combination is evaluated separately; series are summed over other
    labels."""
    for_s: float = 0.0
    """Minimum duration of the condition."""
    over_s: float = 0.0
    """If set, the growth over this time is compared instead of the value."""
