"""Findings of sections whose times vary so much between steps that the slow calls cost time.

Variation caused by the machine is excluded: steps are occasionally longer if threads wait for CPUs,
a hypervisor steals CPU time, or other processes use the CPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.findings.cpu_shares import read_cpu_shares, waits_of_steps
from otel_mlperf.analysis.findings.periodic_stalls import find_periodic_stall
from otel_mlperf.analysis.steps.step_shares import shown
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_series import SectionSeries

_MIN_STEPS: Final = 60
_SLOWDOWN_PER_WAIT: Final = 2.0
"""Slowdown of a step as a multiple of a thread's CPU wait, because other threads wait for it."""
_ELSEWHERE: Final = (names.DATA_LOADING, names.GARBAGE_COLLECTION, names.COMPILE)
"""Categories that naturally vary and have their own findings."""


def find_uneven_sections(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per section with a p95 far above its median.

    The mean excess over the median must also reach the minimum share of a step.
    """
    row, steps = row_of("uneven_section"), numbers.steps
    if steps is None or len(steps.numbers) < _MIN_STEPS:
        return []
    periodic = {finding.where.section for finding in find_periodic_stall(numbers)}
    step_ns = float(np.mean(steps.durations_ns))
    least = max(row.min_step_share, _of_machine(numbers))
    found = []
    for section in numbers.sections:
        if section.category in _ELSEWHERE or shown(section.name) in periodic:
            continue
        median, p95 = (float(value) for value in np.quantile(section.own_ns, (0.5, 0.95)))
        excess = float(np.maximum(section.own_ns - median, 0).mean())
        if median and row.holds(p95 / median) and excess >= least * step_ns:
            found.append(_finding(numbers, section, p95 / median, excess / step_ns))
    return found


def _of_machine(numbers: RunNumbers) -> float:
    """Return the variation that CPU waits and other processes explain, as a share of a step."""
    steps, shares = numbers.steps, read_cpu_shares(numbers)
    assert steps is not None
    first, last = int(steps.numbers.min()), int(steps.numbers.max())
    waits = waits_of_steps(numbers, first, last) or 0.0
    others = shares.others / shares.host.cpus if shares.host is not None else 0.0
    return max(_SLOWDOWN_PER_WAIT * waits, others)


def _finding(numbers: RunNumbers, section: SectionSeries, times: float, share: float) -> Finding:
    row, name = row_of("uneven_section"), shown(section.name)
    assert numbers.steps is not None
    slowest = int(numbers.steps.numbers[int(np.argmax(section.own_ns))])
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(section=name, value=times),
        action=row.action,
        evidence={
            "times": times,
            "share": share,
            "deviation_ns": float(np.std(section.own_ns)),
            "median_ns": float(np.median(section.own_ns)),
            "least_ns": float(np.min(section.own_ns)),
            "most_ns": float(np.max(section.own_ns)),
        },
        where=Where(section=name, steps=(slowest, slowest)),
        # Inputs may differ in length: then there is no gain.
        gain=Gain(low=0.0, high=share),
        command=f"otel-mlperf summary {numbers.summary.short_id} --calls",
    )
