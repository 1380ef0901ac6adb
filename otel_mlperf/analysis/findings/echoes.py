"""Which findings say again what another one says with its reason?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.steps.step_shares import DATA_WAIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.findings.finding import Finding

_ANY: Final = "*"
_REASONS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    # A wait every so many steps: for one worker of so many, or where a pass begins.
    ("periodic_stall", DATA_WAIT): frozenset({"slow_worker", "worker_startup", "cold_start"}),
    ("periodic_stall", "garbage collection"): frozenset({"garbage_collection"}),
    ("periodic_stall", "compile"): frozenset({"recompilation"}),
    # Who waits for a CPU now and then takes longer then, whatever it does.
    ("uneven_section", _ANY): frozenset({"noisy_neighbour", "oversubscription", "uneven_batches"}),
}
"""By id and section, the findings that are its reason."""


def without_echoes(findings: list[Finding]) -> list[Finding]:
    """Those for which there is no reason among the others."""
    found = {finding.id for finding in findings}
    return [
        finding
        for finding in findings
        if not (_reasons(finding.id, finding.where.section) | _reasons(finding.id, _ANY)) & found
    ]


def _reasons(id: str, section: str) -> frozenset[str]:
    return _REASONS.get((id, section), frozenset())
