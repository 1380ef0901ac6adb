"""Findings of stragglers: ranks for which the other ranks wait.

Excess time counts as a rank's own work only if it is neither a wait for a CPU nor a wait for the
buffers that DDP broadcasts before the forward pass. A rank that is slower in its forward pass is
probably slower by the same factor in its backward pass. That part is estimated, not measured,
because backward sections also contain the waits for other ranks.
"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.cpu_shares import read_cpu_shares
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.findings.uneven_shards import find_uneven_shards
from otel_mlperf.analysis.steps.step_shares import UNTRACKED
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_shapes import StepFigures

# Ranks wait for each other in collectives, which overlap with the backward pass: a rank that is
# slow in one of these two may equally be the waiting rank or the late one.
_SHARED: Final = (names.COMMUNICATION, names.BACKWARD)
_EXCHANGES: Final = "SELECT count(*) FROM readings WHERE name = $name"
_MIN_FORWARD_NS: Final = 5_000_000
"""Excess of a forward pass from which it is not only the latency of a buffer broadcast."""
_MIN_GAIN, _MAX_GAIN = 0.7, 1.2
"""Minimum and maximum fraction of a rank's excess that the other ranks wait for."""
_MIN_EXPLAINED: Final = 0.5
"""Minimum excess of another rank, as a fraction of this rank's, to explain it as a wait."""


@once_a_run
def find_stragglers(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per rank that needs far longer for its own work than the other ranks.

    Ranks with more data than the other ranks are excluded, because another finding covers them.
    """
    steps = numbers.summary.steps
    if steps is None or numbers.summary.rank is not None:
        return []
    explained = {finding.where.rank for finding in find_uneven_shards(numbers)}
    ((exchanges,),) = numbers.store.rows(_EXCHANGES, name=names.DDP_BUCKETS.name)
    own = _own(steps, may_wait_in_forward=bool(exchanges))
    moved = _cpu_excess(numbers)
    return [
        _straggler(rank, more_ns, steps, moved.get(rank), numbers.summary.short_id)
        for rank, more_ns in own.items()
        if rank not in explained
        and _is_work(more_ns, moved.get(rank), steps, is_ddp=bool(exchanges))
    ]


class _CpuExcess(NamedTuple):
    """CPU excess of a rank's main thread over the median rank, as shares of a step."""

    work: float
    """Running time, including the CPU waits that are normal for that much work."""
    waits: float
    """CPU waits beyond the normal ones."""


def _cpu_excess(numbers: RunNumbers) -> dict[int, _CpuExcess]:
    """Return the CPU excess by rank; empty if the CPU shares of a rank are unknown.

    A rank that works longer also waits longer for a CPU. The normal wait per second of work is that
    of the rank that waits least.
    """
    steps, ranks = numbers.summary.steps, read_cpu_shares(numbers).ranks
    if steps is None or not ranks or len(ranks) != len(steps.ranks):
        return {}
    least = min(one.main_waits / one.main_on_cpu if one.main_on_cpu else 0.0 for one in ranks)
    work = {one.rank: (1 + least) * one.main_on_cpu for one in ranks}
    usual = median_low(work.values())
    return {
        one.rank: _CpuExcess(work[one.rank] - usual, one.main_waits - least * one.main_on_cpu)
        for one in ranks
    }


def _is_work(
    more_ns: Mapping[str, float], moved: _CpuExcess | None, steps: StepFigures, *, is_ddp: bool
) -> bool:
    """Return whether enough of a rank's excess ``more_ns`` is its own work and not a wait.

    ``moved`` is the CPU excess (None: unknown). If ``is_ddp``, an excess in the forward pass might
    be a wait.
    """
    more = sum(more_ns.values()) / steps.mean_ns
    if moved is not None and more - moved.waits < row_of("straggler").min_step_share:
        return False
    categories = {section.name: section.category for section in steps.rows}
    if not is_ddp or categories.get(_longest(more_ns)) != names.FORWARD:
        return True
    is_computing = moved is not None and moved.work >= more / 2
    return is_computing or sum(more_ns.values()) >= _MIN_FORWARD_NS


def _own(steps: StepFigures, *, may_wait_in_forward: bool) -> dict[int, dict[str, float]]:
    """Return the excess in ns by rank and section, without waits for other ranks.

    Before its forward pass, DDP synchronizes the buffers of all ranks, such as those of batch
    norms. Therefore a rank with most excess in the forward pass might only wait for a late rank. If
    ``may_wait_in_forward``, such ranks are omitted, except the rank with the largest excess.
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
    certainty = {
        rank: 0 if rank in may_wait else _certainty(more_ns, categories)
        for rank, more_ns in own.items()
    }
    total = {rank: sum(more_ns.values()) for rank, more_ns in own.items()}
    late = max(total, key=lambda rank: total[rank], default=None)
    return {
        rank: more_ns
        for rank, more_ns in own.items()
        if (rank == late or rank not in may_wait)
        and not any(
            certainty[other] > certainty[rank] and total[other] >= _MIN_EXPLAINED * total[rank]
            for other in own
        )
    }


def _certainty(more_ns: Mapping[str, float], categories: Mapping[str, str]) -> int:
    """Return the certainty that a rank's excess is the rank's own work: 0 (uncertain), 1 or 2.

    If one of the ranks, which step together, works longer, another rank waits. Therefore the
    longest section decides: 0 for untracked time (which might contain a collective), 1 for the
    category ``other``, 2 for other categories.
    """
    most = _longest(more_ns)
    if most == UNTRACKED:
        return 0
    return 1 if categories.get(most, names.OTHER) == names.OTHER else 2


def _longest(more_ns: Mapping[str, float]) -> str:
    return max(more_ns, key=lambda name: more_ns[name])


def _straggler(
    rank: int,
    more_ns: Mapping[str, float],
    steps: StepFigures,
    moved: _CpuExcess | None,
    short_id: str,
) -> Finding:
    row = row_of("straggler")
    section = _longest(more_ns)
    means = {one.rank: one.sections.get(section, 0.0) for one in steps.ranks}
    # The lower median: of two ranks the faster one is typical.
    usual = median_low(means.values())
    times = means[rank] / usual if usual else 0.0
    fields = {"rank": rank, "section": section, "value": times}
    summary = row.summary.format(**fields)
    if not usual:
        summary = (
            f"rank {rank} likely delays the other ranks: it spends time in {section}, "
            "the median rank does not"
        )
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=summary,
        action=row.action,
        evidence={f"{name} more_ns": ns for name, ns in more_ns.items()},
        where=Where(section=section, rank=rank),
        gain=_gain(rank, more_ns, steps, moved),
        command=f"otel-mlperf summary {short_id} --rank {rank}",
    )


def _gain(
    rank: int, more_ns: Mapping[str, float], steps: StepFigures, moved: _CpuExcess | None
) -> Gain:
    """Return the wait that the other ranks save if this rank is as fast as the median.

    All ranks' steps take equally long, because the other ranks wait in the backward pass for this
    rank's excess ``more_ns``. An excess in its own backward pass adds to that wait, but is unknown:
    between zero and the relative excess of the forward pass. If CPU work (``moved``) is known, it
    decides within these limits, because waiting ranks do no work.
    """
    least = most = sum(more_ns.values()) / steps.mean_ns
    most += _hidden_ns(rank, more_ns, steps) / steps.mean_ns
    if moved is not None:
        least = most = min(most, max(least, moved.work))
    return Gain(low=_MIN_GAIN * least, high=min(1.0, _MAX_GAIN * most)).centered()


def _hidden_ns(rank: int, more_ns: Mapping[str, float], steps: StepFigures) -> float:
    categories = {section.name: section.category for section in steps.rows}
    own = next(one.sections for one in steps.ranks if one.rank == rank)
    more = sum(ns for name, ns in more_ns.items() if categories.get(name) == names.FORWARD)
    forward = sum(own.get(name, 0.0) for name in more_ns if categories.get(name) == names.FORWARD)
    backward = sum(ns for name, ns in own.items() if categories.get(name) == names.BACKWARD)
    return backward * more / forward if forward else 0.0
