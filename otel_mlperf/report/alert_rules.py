"""Prometheus alert rules, rendered from the rows of the findings table.

``python -m otel_mlperf.report.alert_rules > rules.yaml`` writes the rules of the package and of
every installed plug-in finding.
"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Final, get_args

from otel_mlperf.findings.finding_row import Group, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_mlperf.findings.finding_row import Alert, FindingRow, MeasuredSeries

_HEAD: Final = """\
# When does somebody have to look? Each rule ends with its threshold. `for` keeps what passes by
# itself from waking anybody. Send them on with Alertmanager (`alerting:` in prometheus.yml), or
# read them in Grafana (Alerting) and at :9090/alerts.
#
# Written by `python -m otel_mlperf.report.alert_rules` from the table of findings
# (otel_mlperf/findings): change it there.
groups:
"""
_INTERVAL: Final = "30s"
_WIDTH: Final = 100
_SIGNS: Final = {"above": ">", "below": "<"}
_RUN: Final = ("job", "ml_run_name")
_GROWTH_OVER: Final = "15m"
"""Range of ``increase``; longer than a live warning's range, because alerts are read later."""
_RATIO_OVER: Final = "5m"


def render_alert_rules(rows: Iterable[FindingRow]) -> str:
    """Return the text of a Prometheus rules file with one rule per row that has an alert."""
    alerts = [(row, row.alert) for row in rows if row.alert is not None]
    groups = []
    for group in get_args(Group):
        mine = [_rule(row, alert) for row, alert in alerts if alert.group == group]
        if mine:
            head = f"  - name: {group}\n    interval: {_INTERVAL}\n    rules:\n"
            groups.append(head + "\n".join(mine))
    return _HEAD + "\n".join(groups)


def _rule(row: FindingRow, alert: Alert) -> str:
    return "".join(f"{line}\n" for line in _lines(row, alert))


def _lines(row: FindingRow, alert: Alert) -> Iterator[str]:
    threshold = row.threshold if alert.threshold is None else alert.threshold
    yield f"      - alert: {row.name}"
    yield from textwrap.wrap(
        alert.because, _WIDTH, initial_indent="        # ", subsequent_indent="        # "
    )
    # A folded scalar: line feeds become spaces, and PromQL's quotes and braces need no escaping.
    yield "        expr: >-"
    expr = alert.expr or _derive_expr(row, alert)
    yield from (f"          {line}" for line in expr.splitlines())
    yield f"          {_SIGNS[row.comparison]} {threshold:g}"
    if alert.after:
        yield f"        for: {alert.after}"
    yield f"        labels: {{severity: {row.severity}}}"
    yield "        annotations:"
    yield from _folded("summary", alert.summary)
    yield from _folded("description", alert.description)
    yield from _folded("what_to_do", row.action)
    if uid := alert.dashboard:
        yield f"          dashboard: /d/{uid}?var-run={{{{ $labels.ml_run_name | urlquery }}}}"


def _derive_expr(row: FindingRow, alert: Alert) -> str:
    """Return in PromQL the value that the rule compares with its threshold during a run.

    Raises:
        TypeError: the row is not a ``Rule``, so that its alert must have its own ``expr``.
    """
    if not isinstance(row, Rule):
        raise TypeError(f"alert {row.name}: it has no expr, and the row names no series")
    by = ", ".join([*_RUN, *map(_prometheus, (*alert.labels, *row.by))])
    if row.over_s:
        function = "increase" if row.per is None else "rate"
        over = alert.over or (_GROWTH_OVER if row.per is None else _RATIO_OVER)
        parts = [_series(row.measured, "sum", by, function, over)]
        # A divisor without growth must be dropped: otherwise 0 / 0 would yield a NaN sample.
        parts += [_series(row.per, "sum", by, function, over, " > 0")] if row.per else []
    else:
        worst = "max" if row.comparison == "above" else "min"
        function = "avg_over_time" if alert.over else ""
        parts = [_series(row.measured, worst, by, function, alert.over)]
        parts += [_series(row.per, "max", by, "", "")] if row.per else []
    return "\n/ ".join(parts)


def _series(
    part: MeasuredSeries, aggregation: str, by: str, function: str, over: str, bound: str = ""
) -> str:
    where = ",".join(
        f'{_prometheus(label)}{"=~" if len(values) > 1 else "="}"{"|".join(values)}"'
        for label, values in part.where
    )
    selector = part.metric.prometheus + (f"{{{where}}}" if where else "")
    values = f"{function}({selector}[{over}])" if function else selector
    return f"{aggregation} by ({by})\n({values}{bound})"


def _prometheus(label: str) -> str:
    return label.replace(".", "_")


def _folded(name: str, text: str) -> Iterator[str]:
    """Yield a YAML field as a folded scalar, in which no character needs escaping."""
    yield f"          {name}: >-"
    yield from textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=" " * 12,
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


def main() -> None:
    """Write the alert rules to standard output."""
    from otel_mlperf.analysis.findings.finding_sources import all_rows

    sys.stdout.write(render_alert_rules(all_rows()))


if __name__ == "__main__":
    main()
