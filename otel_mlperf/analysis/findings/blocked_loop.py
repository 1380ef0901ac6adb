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
from otel_mlperf.analysis.steps.step_shares import UNTRACKED
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.cpu_shares import OfHost, OfRank
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_NAMED: Final = ("sync_in_loop", "blocked_loop")
"""Findings of lines at which the loop is blocked."""
_FEWEST: Final = 10
"""Minimum number of steps for a typical step."""
_COMPUTES: Final = frozenset({names.FORWARD, names.BACKWARD, names.OPTIMIZER})
"""Categories in which the main thread computes, unless a GPU does it instead."""
_WRITES: Final = 0.5
"""Minimum write calls per step that indicate that the loop itself writes."""
_LEAST_WRITING: Final = 0.05
"""Minimum share of a step, if the loop writes that often: less could be uncounted work."""
_LEAST_SAVED: Final = 0.75
"""Minimum saving as a part of the share: some of the waits may be necessary."""
_MOST_SAVED: Final = 1.5
"""Maximum saving as a part of the share: after a wait, caches are cold and the clock is slow."""
_MOST_WRITTEN: Final = 1.25
"""Maximum saving as a part of the time in no section, for the same reason: that time includes what
the kernel computes to write."""
_COVERED: Final = """SELECT sum(duration_ns) FILTER (WHERE n >= $first),
    max(end_ns) - min(start_ns), count(*)
    FROM steps WHERE phase = $phase AND rank = $rank"""


def find_blocked_loop(numbers: RunNumbers) -> list[Finding]:
    """Return the finding of a single-rank run, unless its lines or its threads explain the wait.

    With several ranks, each may wait for other ranks anywhere: a collective that the loop calls
    directly is in no section. A thread may also wait for threads that compute with it and lack a
    CPU.
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
    """Share of a step in no section in which the main thread was certainly blocked."""
    writes: float | None
    """Write calls of the process per step."""

    @property
    def is_writing(self) -> bool:
        """Return whether writing is the likely cause of the block."""
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
    # All time outside the steps, and in sections that wait, may be blocked time, too.
    moved = rank.main_on_cpu + rank.main_waits + _stolen(rank, host)
    of_steps = (1 - moved - (1 - in_steps)) / in_steps
    share = min(numbers.uncovered, of_steps - _may_wait(numbers))
    writes = None if rank.writes is None else rank.writes * from_to_ns / 1e9 / count
    return _Standing(rank, share, writes)


def _stolen(rank: OfRank, host: OfHost | None) -> float:
    """Return the share of time in which a hypervisor took the CPU under the running main thread.

    Linux does not report steal time per thread: it is attributed in proportion to the running time.
    """
    return host.stolen * rank.main_on_cpu / host.busy if host is not None and host.busy else 0.0


def _may_wait(numbers: RunNumbers) -> float:
    """Return the share of a step in sections in which the main thread may be blocked."""
    steps = numbers.summary.steps
    assert steps is not None
    if numbers.uses_gpu:
        return 1 - numbers.uncovered
    return sum(
        one.share
        for one in steps.rows
        if one.category not in _COMPUTES and one.name != UNTRACKED and not one.beside
    )


def _finding(still: _Standing, numbers: RunNumbers) -> Finding:
    row, rank = row_of("blocked_loop"), still.rank
    evidence = {
        "share": still.share,
        "main_thread_on_cpu": rank.main_on_cpu,
        "over_ns": rank.over_s * 1e9,
    }
    costliest = most_uncovered(numbers)
    doing = (
        "outside all sections (waiting for a disk, the network, a lock or another process, or "
        "sleeping)"
    )
    most = _MOST_SAVED * still.share
    if still.writes is not None:
        evidence["writes"] = still.writes
    if still.is_writing:
        # Passing work to another process is a write, too: the reason of the wait is unknown.
        doing += (
            f"; the process makes {still.writes:.1f} write calls per step, to files, pipes or a "
            "terminal"
        )
        most = max(most, _MOST_WRITTEN * numbers.uncovered)
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(value=still.share, doing=doing)
        + (costliest.words if costliest else ""),
        action=row.action,
        evidence=evidence,
        where=Where(section=UNTRACKED, rank=rank.rank),
        gain=Gain(low=_LEAST_SAVED * still.share, high=min(1.0, most)),
        command=f"otel-mlperf show {numbers.summary.short_id}",
    )
