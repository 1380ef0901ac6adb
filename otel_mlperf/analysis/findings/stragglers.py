"""Which rank do the others wait for?"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.findings.uneven_shards import find_uneven_shards
from otel_mlperf.analysis.steps.step_shares import NOT_IN_A_SPAN
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_shapes import StepFigures

# Ranks wait for each other in collectives, and those overlap with the backward pass: who is long in
# one of these two is as likely the rank that waits as the one that is waited for.
_SHARED: Final = (names.COMMUNICATION, names.BACKWARD)
_EXCHANGES: Final = "SELECT count(*) FROM readings WHERE name = $name"
_AS_LONG: Final = 0.5
"""Part of what one rank takes longer that another one must take longer, to be waited for there."""


@once_a_run
def find_stragglers(numbers: RunNumbers) -> list[Finding]:
    """One for each rank that takes far longer in what it does for itself.

    Not for one that has more data than the others: that is its finding.
    """
    steps = numbers.summary.steps
    if steps is None or numbers.summary.rank is not None:
        return []
    explained = {finding.where.rank for finding in find_uneven_shards(numbers)}
    ((exchanges,),) = numbers.store.rows(_EXCHANGES, name=names.DDP_BUCKETS.name)
    own = _own(steps, may_wait_in_forward=bool(exchanges))
    found = {rank: more_ns for rank, more_ns in own.items() if rank not in explained}
    return [
        _straggler(rank, more_ns, steps, numbers.summary.short_id)
        for rank, more_ns in found.items()
    ]


def _own(steps: StepFigures, *, may_wait_in_forward: bool) -> dict[int, dict[str, float]]:
    """By rank what it takes longer than the others in each section, without waits for these.

    Before its forward pass DDP makes the buffers of all ranks equal, as those of batch norms: who
    comes first waits there, and takes less longer than the one that is waited for.
    """
    categories = {section.name: section.category for section in steps.rows}
    own = {}
    for one in steps.stand_outs:
        more_ns = {n: ns for n, ns in one.more_ns.items() if categories.get(n) not in _SHARED}
        if more_ns:
            own[one.rank] = more_ns
    may_wait = {
        rank
        for rank, more_ns in own.items()
        if may_wait_in_forward and categories.get(_longest(more_ns)) == names.FORWARD
    }
    sure = {
        rank: 0 if rank in may_wait else _sureness(more_ns, categories)
        for rank, more_ns in own.items()
    }
    total = {rank: sum(more_ns.values()) for rank, more_ns in own.items()}
    late = max(total, key=lambda rank: total[rank], default=None)
    return {
        rank: more_ns
        for rank, more_ns in own.items()
        if (rank == late or rank not in may_wait)
        and not any(
            sure[other] > sure[rank] and total[other] >= _AS_LONG * total[rank] for other in own
        )
    }


def _sureness(more_ns: Mapping[str, float], categories: Mapping[str, str]) -> int:
    """How surely it is work of the rank's own: a collective may be in what nobody has named.

    Ranks that step together take as long, so that where one works longer another one waits.
    """
    most = _longest(more_ns)
    if most == NOT_IN_A_SPAN:
        return 0
    return 1 if categories.get(most, names.OTHER) == names.OTHER else 2


def _longest(more_ns: Mapping[str, float]) -> str:
    return max(more_ns, key=lambda name: more_ns[name])


def _straggler(
    rank: int, more_ns: Mapping[str, float], steps: StepFigures, short_id: str
) -> Finding:
    row = row_of("straggler")
    section = _longest(more_ns)
    means = {one.rank: one.sections.get(section, 0.0) for one in steps.ranks}
    # The lower of two in the middle: of two ranks the faster one is what is usual.
    usual = median_low(means.values())
    times = means[rank] / usual if usual else 0.0
    words = {"rank": rank, "section": section, "value": times}
    said = row.summary.format(**words)
    if not usual:
        said = f"rank {rank} likely holds up the others: {section} is on no other one"
    excess = sum(more_ns.values()) / steps.mean_ns
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=said,
        action=row.action,
        evidence={f"{name} more_ns": ns for name, ns in more_ns.items()},
        where=Where(section=section, rank=rank),
        # The others may have had to wait for something else in that time.
        gain=Gain(low=0.0, high=min(1.0, excess)),
        command=f"otel-mlperf summary {short_id} --rank {rank}",
    )
