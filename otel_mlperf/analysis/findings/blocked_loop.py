"""Finding of a main thread that is blocked in steps although no recorded section waits.

The blocked thread neither runs nor is ready to run: it waits for a disk, a network or a lock, or it
sleeps. Only its total blocked time is known. The part that sections cannot contain is attributed to
the time outside sections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.contention import find_contention
from otel_mlperf.analysis.findings.cpu_shares import read_cpu_shares
from otel_mlperf.analysis.findings.sampled_lines import find_sampled_lines
from otel_mlperf.analysis.findings.stack_lines import most_uncovered
from otel_mlperf.analysis.steps.step_shares import NOT_IN_A_SPAN
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.cpu_shares import OfHost, OfRank
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_NAMED: Final = ("sync_in_loop", "blocked_loop")
"""Findings of lines at which the loop stands still."""
_FEWEST: Final = 10
"""Steps from which on there is anything to say about a usual one."""
_COMPUTES: Final = frozenset({names.FORWARD, names.BACKWARD, names.OPTIMIZER})
"""Categories in which the main thread works, unless a GPU does it for it."""
_WRITES: Final = 0.5
"""Times a step from which on it is the loop that writes, not its surroundings."""
_LEAST_WRITING: Final = 0.05
"""Of a step, where it writes that often: less could be what nobody counts."""
_LEAST_SAVED: Final = 0.75
"""Of the share; some of what is waited for may be needed."""
_MOST_SAVED: Final = 1.5
"""Of the share: who has waited begins again with cold caches and a slow clock."""
_MOST_WRITTEN: Final = 1.25
"""Of what is in no section, for the same reason: what the kernel computes to write is in there."""
_COVERED: Final = """SELECT sum(duration_ns) FILTER (WHERE n >= $first),
    max(end_ns) - min(start_ns), count(*)
    FROM steps WHERE phase = $phase AND rank = $rank"""


def find_blocked_loop(numbers: RunNumbers) -> list[Finding]:
    """Of a run of one rank; silent where lines of the program, or its threads, are found to do it.

    Of several ranks, each may wait for the others anywhere: a collective that the loop calls by
    itself is in no section. And a thread may wait for those that compute with it and have no CPU.
    """
    steps, row = numbers.summary.steps, row_of("blocked_loop")
    if steps is None or steps.count < _FEWEST or len(steps.rows) < 2:
        return []
    if numbers.summary.world_size > 1:
        return []
    if not row.holds(numbers.uncovered):
        return []
    if any(one.id in _NAMED for one in find_sampled_lines(numbers)):
        return []
    if any(one.id == "oversubscription" for one in find_contention(numbers)):
        return []
    shares = read_cpu_shares(numbers)
    still = (_standing(rank, shares.host, numbers) for rank in shares.ranks)
    return [
        _finding(one, numbers)
        for one in still
        if row.holds(one.share) or (one.is_writing and one.share > _LEAST_WRITING)
    ]


class _Standing(NamedTuple):
    rank: OfRank
    share: float
    """Of a step, in no section, in which the main thread surely stood still."""
    writes: float | None
    """Times a step that the process wrote."""

    @property
    def is_writing(self) -> bool:
        """Whether it is likely that it stands still for that."""
        return self.writes is not None and self.writes >= _WRITES


def _standing(rank: OfRank, host: OfHost | None, numbers: RunNumbers) -> _Standing:
    steps = numbers.summary.steps
    assert steps is not None
    first = 1 if numbers.summary.warm_up else 0
    ((sum_ns, from_to_ns, count),) = numbers.store.rows(
        _COVERED, phase=steps.phase, rank=rank.rank, first=first
    )
    if not sum_ns or not from_to_ns:
        return _Standing(rank, 0.0, None)
    in_steps = min(1.0, sum_ns / from_to_ns)
    # All that is beside the steps, and in sections that wait, may be standing still, too.
    moved = rank.main_on_cpu + rank.main_waits + _stolen(rank, host)
    of_steps = (1 - moved - (1 - in_steps)) / in_steps
    share = min(numbers.uncovered, of_steps - _may_wait(numbers))
    writes = None if rank.writes is None else rank.writes * from_to_ns / 1e9 / count
    return _Standing(rank, share, writes)


def _stolen(rank: OfRank, host: OfHost | None) -> float:
    """Share of the time in which a hypervisor had the CPU that the main thread was running on.

    Linux counts it for no thread: each has lost as it ran.
    """
    return host.stolen * rank.main_on_cpu / host.busy if host is not None and host.busy else 0.0


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
    costliest = most_uncovered(numbers)
    doing = "for a disk, a network, a lock, another process, or asleep"
    most = _MOST_SAVED * still.share
    if still.writes is not None:
        evidence["writes"] = still.writes
    if still.is_writing:
        # To hand work to another process is to write, too: what is waited for is not known.
        doing += f"; it writes {still.writes:.1f} times a step, to files, pipes or a terminal"
        most = max(most, _MOST_WRITTEN * numbers.uncovered)
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(value=still.share, doing=doing)
        + (costliest.words if costliest else ""),
        action=row.action,
        evidence=evidence,
        where=Where(section=NOT_IN_A_SPAN, rank=rank.rank),
        gain=Gain(low=_LEAST_SAVED * still.share, high=min(1.0, most)),
        command=f"otel-mlperf show {numbers.summary.short_id}",
    )
