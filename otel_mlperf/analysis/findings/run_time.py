"""Did the run's time go into what it is for, and were its requests as fast as they are to be?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.summary.goodput_shapes import PRODUCTIVE
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_LEAST_NS: Final = 600_000_000_000
"""Of shorter runs imports and set-up are most: nothing is wrong with that."""
_FEWEST: Final = 20
"""Requests from which on one that is late is no accident."""


def find_low_goodput(numbers: RunNumbers) -> list[Finding]:
    """One finding, if a run of ten minutes or more spent less than the row's share on its steps."""
    ledger, row = numbers.summary.ledger, row_of("low_goodput")
    if ledger is None or ledger.wall_ns < _LEAST_NS:
        return []
    if not ledger.goodput or not row.holds(ledger.goodput):
        return []
    total = sum(ledger.spent_ns.values())
    others = {kind: ns for kind, ns in ledger.spent_ns.items() if kind not in PRODUCTIVE}
    most = max(others, key=lambda kind: others[kind])
    share = others[most] / total
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=ledger.goodput),
            action=row.action.format(most=f"{most}, {share:.0%}"),
            evidence={"goodput": ledger.goodput, "wall_ns": ledger.wall_ns, "most": share},
            gain=Gain(low=0.0, high=share, of="run"),
            command=f"otel-mlperf summary {numbers.summary.short_id}",
        )
    ]


def find_late_requests(numbers: RunNumbers) -> list[Finding]:
    """One finding for each kind of request of which too few were within their bound."""
    row = row_of("requests_late")
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=calls.within_share, ml_section_name=calls.name),
            action=row.action,
            evidence={
                "within": calls.within_share,
                "bound_ns": calls.bound_s * 1e9,
                "p95_ns": calls.p95_ns,
                "requests": calls.count,
            },
            where=Where(section=calls.name),
            command=f"otel-mlperf summary {numbers.summary.short_id} --phase request",
        )
        for calls in numbers.summary.calls
        if calls.category == names.REQUEST and calls.count >= _FEWEST
        if calls.bound_s is not None and calls.within_share is not None
        if row.holds(calls.within_share)
    ]
