"""Times and durations of live warnings, added to the findings of a run.

The run folder contains the warnings that the agent reported. A warning is added to the finding that
refers to the same row of the findings table. If no such finding exists, because the condition has
passed, the warning becomes a finding itself.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.findings.finding import Finding, Warned, Where
from otel_mlperf.findings.finding_table import RULES

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.findings.finding_row import Rule

_RULES: Final = {rule.id: rule for rule in RULES}
_WARNINGS: Final = """WITH told AS (
    SELECT rank, restart, id, labels, start_ns, max(end_ns) AS end_ns,
           arg_max(value, end_ns) AS value, arg_max(threshold, end_ns) AS threshold
    FROM warnings GROUP BY ALL)
SELECT t.id, t.rank, t.labels, t.start_ns, t.end_ns, t.value, t.threshold,
       min(s.number), max(s.number)
FROM told t LEFT JOIN (SELECT * FROM steps WHERE phase = $phase) s
    ON s.start_ns <= t.end_ns AND s.end_ns >= t.start_ns AND s.rank = coalesce(t.rank, s.rank)
GROUP BY ALL ORDER BY t.start_ns, t.id, t.rank, t.labels"""
_Place = tuple[str, "int | None", str]
"""Row id, rank and labels of a warning."""


class _WarnedRule(NamedTuple):
    rule: Rule
    rank: int | None
    labels: dict[str, str]

    @property
    def where(self) -> Where:
        return Where(rank=self.rank, device=device_of(self.labels))


def device_of(labels: dict[str, str]) -> str:
    """Return the device of a series, or a disk's mount point; empty if the labels have neither."""
    return labels.get(names.HW_NAME) or labels.get(names.MOUNTPOINT, "")


def with_warnings(findings: list[Finding], numbers: RunNumbers) -> list[Finding]:
    """Return the findings, with the times of live warnings added to those that match.

    A warning that matches no finding becomes a finding.
    """
    findings = list(findings)
    for warning, times in _read_warnings(numbers):
        at = next((i for i, one in enumerate(findings) if _is_of(one, warning)), None)
        if at is None:
            findings.append(_finding(warning, times))
        else:
            findings[at] = replace(findings[at], warned=[*findings[at].warned, *times])
    return findings


def _read_warnings(numbers: RunNumbers) -> list[tuple[_WarnedRule, list[Warned]]]:
    if not numbers.store.rows("SELECT 1 FROM warnings LIMIT 1"):
        return []  # most runs have no warnings: avoids the join with their steps
    by_place: dict[_Place, list[Warned]] = {}
    steps, began_ns = numbers.summary.steps, numbers.summary.started_ns
    for id, rank, labels, start, end, value, threshold, first, last in numbers.store.rows(
        _WARNINGS, phase=steps.phase if steps else ""
    ):
        time = Warned(
            after_ns=max(0, start - began_ns),
            held_ns=end - start,
            steps=None if first is None else (first, last),
            rank=rank,
            value=value,
            threshold=threshold,
        )
        by_place.setdefault((id, rank, labels), []).append(time)
    return [
        (_WarnedRule(_RULES[id], rank, json.loads(labels)), times)
        for (id, rank, labels), times in by_place.items()
        if id in _RULES  # skips warnings of rules from another version
    ]


def _is_of(finding: Finding, warning: _WarnedRule) -> bool:
    where = finding.where
    return (
        finding.id == warning.rule.id
        and where.rank in (None, warning.rank)
        and where.device in ("", warning.where.device)
    )


def _finding(warning: _WarnedRule, times: list[Warned]) -> Finding:
    rule = warning.rule
    worst = max if rule.comparison == "above" else min
    value = worst(time.value for time in times)
    return Finding(
        id=rule.id,
        severity=rule.severity,
        summary=rule.format_summary(value, warning.labels),
        action=rule.action,
        evidence={"value": value, "threshold": rule.threshold},
        where=warning.where,
        warned=times,
    )
