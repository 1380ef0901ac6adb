"""What was lost in a run: devices that stopped answering, records that nobody can get any more?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.findings.finding import Finding, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers


def find_losses(numbers: RunNumbers) -> list[Finding]:
    """By the spans of lost devices and by the accounts: neither is among the readings."""
    summary, row = numbers.summary, row_of("gpu_lost")
    findings = [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(hw_name=loss.name or loss.id),
            action=row.action,
            evidence={"count": loss.count, "after_ns": loss.after_ns},
            where=Where(rank=loss.rank, device=loss.name),
        )
        for loss in summary.losses
    ]
    row, lost = row_of("telemetry_lost"), summary.telemetry.lost
    if lost is not None and row.holds(lost):
        findings.append(
            Finding(
                id=row.id,
                severity=row.severity,
                summary=row.summary.format(value=lost),
                action=row.action,
                evidence={"lost": lost},
                command=f"otel-mlperf doctor {summary.short_id}",
            )
        )
    return findings
