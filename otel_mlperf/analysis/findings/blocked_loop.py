"""Does the main thread stand still in a step where nothing that is recorded has it wait?

It neither runs nor is ready to run: it waits for a disk, a network, a lock, or sleeps. That is
known of it as a whole; as much of it as the sections cannot have is in none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.cpu_shares import read_cpu_shares
from otel_mlperf.analysis.findings.stack_lines import lifted_stack_lines
from otel_mlperf.analysis.steps.step_shares import NOT_IN_A_SPAN
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.cpu_shares import OfRank
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_FEWEST: Final = 10
"""Steps from which on there is anything to say about a usual one."""
_COMPUTES: Final = frozenset({names.FORWARD, names.BACKWARD, names.OPTIMIZER})
"""Categories in which the main thread works, unless a GPU does it for it."""
_WRITES: Final = 0.5
"""Times a step from which on it is the loop that writes, not its surroundings."""
_LEAST_SAVED: Final = 0.75
"""Of the share; some of what is waited for may be needed."""
_MOST_SAVED: Final = 1.5
"""Of the share: who has waited begins again with cold caches and a slow clock."""
_COVERED: Final = """SELECT sum(duration_ns), max(end_ns) - min(start_ns), count(*)
    FROM steps WHERE phase = $phase AND rank = $rank"""


def find_blocked_loop(numbers: RunNumbers) -> list[Finding]:
    """Of a run of one rank; silent where lines of the program are known.

    Of several, each may wait for the others anywhere: a collective that the loop calls by itself is
    in no section.
    """
    steps, row = numbers.summary.steps, row_of("blocked_loop")
    if steps is None or steps.count < _FEWEST or len(steps.rows) < 2:
        return []
    if numbers.summary.world_size > 1:
        return []
    if not row.holds(numbers.uncovered) or lifted_stack_lines(numbers):
        return []
    still = (_standing(rank, numbers) for rank in read_cpu_shares(numbers).ranks)
    return [_finding(one, numbers) for one in still if row.holds(one.share)]


class _Standing(NamedTuple):
    rank: OfRank
    share: float
    """Of a step, in no section, in which the main thread surely stood still."""
    writes: float | None
    """Times a step that the process wrote."""


def _standing(rank: OfRank, numbers: RunNumbers) -> _Standing:
    steps = numbers.summary.steps
    assert steps is not None
    ((sum_ns, from_to_ns, count),) = numbers.store.rows(_COVERED, phase=steps.phase, rank=rank.rank)
    if not sum_ns or not from_to_ns:
        return _Standing(rank, 0.0, None)
    in_steps = min(1.0, sum_ns / from_to_ns)
    # All that is beside the steps, and in sections that wait, may be standing still, too.
    of_steps = (1 - rank.main_on_cpu - rank.main_waits - (1 - in_steps)) / in_steps
    share = min(numbers.uncovered, of_steps - _may_wait(numbers))
    writes = None if rank.writes is None else rank.writes * from_to_ns / 1e9 / count
    return _Standing(rank, share, writes)


def _may_wait(numbers: RunNumbers) -> float:
    """Share of a step in sections in which the main thread may stand still."""
    steps = numbers.summary.steps
    assert steps is not None
    if numbers.uses_gpu:
        return 1 - numbers.uncovered
    return sum(
        one.share
        for one in steps.rows
        if one.category not in _COMPUTES and one.name != NOT_IN_A_SPAN and not one.beside
    )


def _finding(still: _Standing, numbers: RunNumbers) -> Finding:
    row, rank = row_of("blocked_loop"), still.rank
    evidence = {
        "share": still.share,
        "main_thread_on_cpu": rank.main_on_cpu,
        "over_ns": rank.over_s * 1e9,
    }
    doing = "for a disk, a network, a lock, or asleep"
    if still.writes is not None:
        evidence["writes"] = still.writes
        if still.writes >= _WRITES:
            doing = f"for what it writes, {still.writes:.1f} times a step"
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(value=still.share, doing=doing),
        action=row.action,
        evidence=evidence,
        where=Where(section=NOT_IN_A_SPAN, rank=rank.rank),
        gain=Gain(low=_LEAST_SAVED * still.share, high=min(1.0, _MOST_SAVED * still.share)),
        command=f"otel-mlperf show {numbers.summary.short_id}",
    )
