"""Did the GPUs idle between the sections of a step?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.findings.finding import Finding, Gain
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_FEWEST: Final = 3
"""Steps from which on there is anything to say about a usual one."""


def find_gpu_idle(numbers: RunNumbers) -> list[Finding]:
    """One finding, if the GPUs idle for more than the row's share of a step."""
    gpu, row = numbers.summary.gpu, row_of("gpu_idle")
    if gpu is None or gpu.steps < _FEWEST or gpu.idle_ns is None:
        return []
    share = gpu.idle_ns / gpu.gpu_ns
    if not row.holds(share):
        return []
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=share),
            action=row.action,
            evidence={
                "share": share,
                "idle_ns": gpu.idle_ns,
                "gpu_ns": gpu.gpu_ns,
                "steps": gpu.steps,
            },
            gain=Gain(low=0.0, high=share),
        )
    ]
