"""Prometheus alert rules, rendered from the rows of the findings table.

``python -m otel_mlperf.report.alert_rules > rules.yaml`` writes the rules of the package and of
every installed plug-in finding.
"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Final, get_args

from otel_mlperf.findings.finding_row import Group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_mlperf.findings.finding_row import Alert, FindingRow

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


def render_alert_rules(rows: Iterable[FindingRow]) -> str:
    """Return a rules file; rows without an alert are left out."""
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
    yield from (f"          {line}" for line in alert.expr.splitlines())
    yield f"          {_SIGNS[row.comparison]} {threshold:g}"
    if alert.after:
        yield f"        for: {alert.after}"
    yield f"        labels: {{severity: {row.severity}}}"
    yield "        annotations:"
    for name in ("summary", "description", "what_to_do"):
        yield from _folded(name, getattr(alert, name))
    if uid := alert.dashboard:
        yield f"          dashboard: /d/{uid}?var-run={{{{ $labels.ml_run_name | urlquery }}}}"


def _folded(name: str, text: str) -> Iterator[str]:
    """Yield a text as a folded YAML scalar, so that nothing in it needs quoting."""
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
