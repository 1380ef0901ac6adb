"""Which rank do the others wait for?"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_shapes import StandOut, StepFigures

# Ranks wait for each other in collectives, and those overlap with the backward pass: who is long in
# one of these two is as likely the rank that waits as the one that is waited for.
_SHARED: Final = (names.COMMUNICATION, names.BACKWARD)


def find_stragglers(numbers: RunNumbers) -> list[Finding]:
    """One for each rank that takes far longer in what it does for itself."""
    steps = numbers.summary.steps
    if steps is None or numbers.summary.rank is not None:
        return []
    shared = {section.name for section in steps.rows if section.category in _SHARED}
    stragglers = []
    for stand_out in steps.stand_outs:
        more_ns = {name: ns for name, ns in stand_out.more_ns.items() if name not in shared}
        if more_ns:
            stragglers.append(_straggler(stand_out, more_ns, steps, numbers.summary.short_id))
    return stragglers


def _straggler(
    stand_out: StandOut, more_ns: Mapping[str, float], steps: StepFigures, short_id: str
) -> Finding:
    row = row_of("straggler")
    section = max(more_ns, key=lambda name: more_ns[name])
    means = {rank.rank: rank.sections.get(section, 0.0) for rank in steps.ranks}
    # The lower of two in the middle: of two ranks the faster one is what is usual.
    usual = median_low(means.values())
    times = means[stand_out.rank] / usual if usual else 0.0
    words = {"rank": stand_out.rank, "section": section, "value": times}
    said = row.summary.format(**words)
    if not usual:
        said = f"rank {stand_out.rank} likely holds up the others: {section} is on no other one"
    excess = sum(more_ns.values()) / steps.mean_ns
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=said,
        action=row.action,
        evidence={f"{name} more_ns": ns for name, ns in more_ns.items()},
        where=Where(section=section, rank=stand_out.rank),
        # The others may have had to wait for something else in that time.
        gain=Gain(low=0.0, high=min(1.0, excess)),
        command=f"otel-mlperf summary {short_id} --rank {stand_out.rank}",
    )
