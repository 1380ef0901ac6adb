"""Findings of CPU contention: threads of the run wait for CPUs that are in use.

Only threads that are ready to run count as waiting, not threads that sleep or wait for data or a
device. If the run has fewer runnable threads than CPUs, only other processes can cause a wait.
Runnable threads beyond the number of CPUs wait because of the run's own threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.findings.cpu_shares import MAIN, read_cpu_shares
from otel_mlperf.findings.finding import WIDEST, Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.cpu_shares import CpuShares, RankCpu
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_MIN_STEPS: Final = 10
_TOO_MANY: Final = 1.5
"""Runnable threads per CPU above which a rank is oversubscribed. Slightly over 1 is common."""
_MIN_EXCESS: Final = 1.5
"""Runnable threads beyond the number of CPUs above which a rank is oversubscribed. Below it, a
single thread may wait for a quota of less than one CPU."""
_VERY_MANY: Final = 8.0
"""Runnable threads per CPU from which the gain of fewer threads is near its lower bound."""
_OTHERS: Final = 0.1
"""Share of the host's CPUs used by other processes above which they are noisy neighbours."""
_UNSURE: Final = 0.2
"""Relative uncertainty of a gain in either direction, because readings are few."""
_WORKER: Final = "worker"


def find_contention(numbers: RunNumbers) -> list[Finding]:
    """Return one finding for each rank whose main thread waits too long for CPUs.

    The finding is *oversubscription* if the run's own threads cause the wait, otherwise
    *noisy_neighbour*. The list is empty if the run has too few steps or no CPU readings.
    """
    steps = numbers.summary.steps
    if steps is None or steps.count < _MIN_STEPS:
        return []
    shares = read_cpu_shares(numbers)
    short_id = numbers.summary.short_id
    found = []
    for rank in shares.ranks:
        if _is_oversubscribed(rank, shares):
            found.append(_oversubscription(rank, short_id))
        elif _has_neighbours(rank, shares):
            found.append(_noisy_neighbour(rank, shares, short_id))
    return found


def _excess(rank: RankCpu) -> float:
    return max(0.0, rank.runnable - rank.cpus)


def _is_oversubscribed(rank: RankCpu, shares: CpuShares) -> bool:
    return (
        row_of("oversubscription").holds(rank.main_waits)
        and rank.runnable > _TOO_MANY * rank.cpus
        and _excess(rank) > max(shares.others, _MIN_EXCESS)
    )


def _has_neighbours(rank: RankCpu, shares: CpuShares) -> bool:
    host = shares.host
    return (
        host is not None
        and row_of("noisy_neighbour").holds(rank.main_waits)
        and shares.others > _OTHERS * host.cpus
        and shares.others >= _excess(rank)
    )


def _oversubscription(rank: RankCpu, short_id: str) -> Finding:
    row = row_of("oversubscription")
    threads = max(1, int(rank.cpus))
    fields = {"runnable": rank.runnable, "cpus": rank.cpus, "value": rank.main_waits}
    is_workers = rank.runnable_of(_WORKER) > rank.runnable_of(MAIN)
    action = row.action.format(threads=threads)
    if is_workers:
        action = (
            "The run likely has too many DataLoader workers for the CPUs, or the workers start "
            "threads: use fewer workers, with one thread each (OMP_NUM_THREADS=1, "
            "cv2.setNumThreads(0))."
        )
    # The measured gain of fewer threads was 0.5 (very many threads) to 1.75 times the wait: threads
    # of one operation wait for each other at its end, some by spinning. The minimum is 0 for
    # DataLoader workers, because their work has to be done in any case.
    low = 0.0 if is_workers else rank.main_waits / 2
    high = rank.main_waits if is_workers else min(1 - rank.main_on_cpu, rank.main_waits * 1.75)
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(**fields),
        action=action,
        evidence=_evidence(rank) | {"threads": rank.threads},
        where=Where(rank=rank.rank),
        gain=_narrowed(low, high, is_very_many=rank.runnable >= _VERY_MANY * rank.cpus),
        command=f"otel-mlperf summary {short_id}",
    )


def _narrowed(low: float, high: float, *, is_very_many: bool) -> Gain:
    if is_very_many:
        return Gain(low=low, high=min(high, low + WIDEST))
    return Gain(low=low, high=high).centered()


def _noisy_neighbour(rank: RankCpu, shares: CpuShares, short_id: str) -> Finding:
    row, host = row_of("noisy_neighbour"), shares.host
    assert host is not None
    fields = {"others": shares.others, "host": host.cpus, "value": rank.main_waits}
    # The loss is between two estimates: the main thread's own wait, and the share of all runnable
    # threads that waited. The latter slows down every thread: joint work ends with its last thread.
    waiting = sum(rank.waiting.values())
    paced = (rank.main_on_cpu + rank.main_waits) * waiting / rank.runnable if rank.runnable else 0.0
    low, high = sorted((rank.main_waits, paced))
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(**fields),
        action=row.action,
        evidence=_evidence(rank) | {"others_cpus": shares.others, "stolen_cpus": host.stolen},
        where=Where(rank=rank.rank),
        gain=Gain(low=(1 - _UNSURE) * low, high=min(1.0, (1 + _UNSURE) * high)),
        command=f"otel-mlperf summary {short_id}",
    )


def _evidence(rank: RankCpu) -> dict[str, float]:
    return {
        "main_thread_waits": rank.main_waits,
        "main_thread_on_cpu": rank.main_on_cpu,
        "runnable_threads": rank.runnable,
        "used_cpus": sum(rank.on_cpu.values()),
        "cpus": rank.cpus,
        "over_ns": rank.over_s * 1e9,
    }
