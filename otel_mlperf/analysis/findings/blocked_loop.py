"""Finding of a main thread that is blocked in steps although no recorded section waits.

The blocked thread neither runs nor is ready to run: it waits for a disk, a network or a lock, or it
sleeps. Only the total blocked time is known. The part of it that exceeds the time in sections that
can wait is attributed to untracked time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.contention import find_contention
from otel_mlperf.analysis.findings.cpu_shares import read_cpu_shares
from otel_mlperf.analysis.findings.sampled_lines import find_sampled_lines
from otel_mlperf.analysis.findings.stack_lines import most_uncovered
from otel_mlperf.analysis.steps.step_shares import UNTRACKED
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.cpu_shares import HostCpu, RankCpu
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_NAMED: Final = ("sync_in_loop", "blocked_loop")
_MIN_STEPS: Final = 10
_COMPUTES: Final = frozenset({names.FORWARD, names.BACKWARD, names.OPTIMIZER})
"""Categories in which the main thread computes, so that it is not blocked unless a GPU computes."""
_WRITES: Final = 0.5
"""Minimum number of write calls per step from which the loop itself is assumed to write."""
_MIN_WRITING: Final = 0.05
"""Minimum blocked share of a step if the loop writes; a smaller share may be uncounted work."""
_MIN_SAVED: Final = 0.75
"""Minimum saving as a fraction of the blocked share, because some waits may be necessary."""
_MAX_SAVED: Final = 1.5
"""Maximum saving as a fraction of the blocked share, above 1: after a wait, caches are cold and the
clock is slow."""
_MAX_SAVED_WRITING: Final = 1.25
"""Maximum saving of a loop that writes, as a fraction of the untracked share, which includes the
kernel's CPU time for the writes. Above 1 for the same reason as ``_MAX_SAVED``."""
_COVERED: Final = """SELECT sum(duration_ns) FILTER (WHERE n >= $first),
    max(end_ns) - min(start_ns), count(*)
    FROM steps WHERE phase = $phase AND rank = $rank"""


def find_blocked_loop(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if the loop is blocked and no other finding explains the wait, else none.

    Only single-rank runs are evaluated: with several ranks, each can wait for other ranks anywhere,
    because a collective that the loop calls directly is in no section. Oversubscription also
    explains a wait: the main thread waits for compute threads that lack a CPU.
    """
    steps, row = numbers.summary.steps, row_of("blocked_loop")
    if steps is None or steps.count < _MIN_STEPS or len(steps.rows) < 2:
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
    blocked = (_blocked_rank(rank, shares.host, numbers) for rank in shares.ranks)
    return [
        _finding(one, numbers)
        for one in blocked
        if row.holds(one.share) or (one.is_writing and one.share > _MIN_WRITING)
    ]


class _BlockedRank(NamedTuple):
    rank: RankCpu
    share: float
    """Share of a step that is untracked and in which the main thread was certainly blocked."""
    writes: float | None
    """Write calls of the training process per step; None: not counted."""

    @property
    def is_writing(self) -> bool:
        return self.writes is not None and self.writes >= _WRITES


def _blocked_rank(rank: RankCpu, host: HostCpu | None, numbers: RunNumbers) -> _BlockedRank:
    steps = numbers.summary.steps
    assert steps is not None
    first = 1 if numbers.summary.warm_up else 0
    ((sum_ns, from_to_ns, count),) = numbers.store.rows(
        _COVERED, phase=steps.phase, rank=rank.rank, first=first
    )
    if not sum_ns or not from_to_ns:
        return _BlockedRank(rank, 0.0, None)
    in_steps = min(1.0, sum_ns / from_to_ns)
    # Subtracted: time outside steps and in waiting sections may be blocked time, too.
    moved = rank.main_on_cpu + rank.main_waits + _stolen(rank, host)
    of_steps = (1 - moved - (1 - in_steps)) / in_steps
    share = min(numbers.uncovered, of_steps - _may_wait(numbers))
    writes = None if rank.writes is None else rank.writes * from_to_ns / 1e9 / count
    return _BlockedRank(rank, share, writes)


def _stolen(rank: RankCpu, host: HostCpu | None) -> float:
    """Return the share of time in which a hypervisor took the CPU from the running main thread.

    Linux reports this steal time per machine: a thread's part is in proportion to its running time.
    The result is 0.0 if ``host`` is unknown.
    """
    return host.stolen * rank.main_on_cpu / host.busy if host is not None and host.busy else 0.0


def _may_wait(numbers: RunNumbers) -> float:
    steps = numbers.summary.steps
    assert steps is not None
    if numbers.uses_gpu:
        return 1 - numbers.uncovered
    return sum(
        one.share
        for one in steps.rows
        if one.category not in _COMPUTES and one.name != UNTRACKED and not one.beside
    )


def _finding(blocked: _BlockedRank, numbers: RunNumbers) -> Finding:
    row, rank = row_of("blocked_loop"), blocked.rank
    evidence = {
        "share": blocked.share,
        "main_thread_on_cpu": rank.main_on_cpu,
        "over_ns": rank.over_s * 1e9,
    }
    costliest = most_uncovered(numbers)
    doing = (
        "outside all sections (waiting for a disk, the network, a lock or another process, or "
        "sleeping)"
    )
    most = _MAX_SAVED * blocked.share
    if blocked.writes is not None:
        evidence["writes"] = blocked.writes
    if blocked.is_writing:
        # A write may also pass work to another process: the reason of the wait is unknown.
        doing += (
            f"; the process makes {blocked.writes:.1f} write calls per step, to files, pipes or a "
            "terminal"
        )
        most = max(most, _MAX_SAVED_WRITING * numbers.uncovered)
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(value=blocked.share, doing=doing)
        + (costliest.words if costliest else ""),
        action=row.action,
        evidence=evidence,
        where=Where(section=UNTRACKED, rank=rank.rank),
        gain=Gain(low=_MIN_SAVED * blocked.share, high=min(1.0, most)),
        command=f"otel-mlperf show {numbers.summary.short_id}",
    )
