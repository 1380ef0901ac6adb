"""CPU shares during steps: CPU use and CPU waits of a run's threads and of other processes.

All values are rates between the first and the last reading during steps. CPU seconds per second are
*CPUs*. Seconds of CPU wait per second are the average number of waiting threads.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.store.table_reader import Store

MAIN: Final = "main"
_SHORTEST_S: Final = 1.4
"""Minimum time between first and last reading: a shorter time is not representative."""
BUSY: Final = ("user", "nice", "system", "interrupt")
"""Modes in which a CPU works."""
STOLEN: Final = "steal"
_GROWING: Final = (
    names.PROCESS_CPU_TIME,
    names.PROCESS_RUN_DELAY,
    names.MAIN_THREAD_CPU_TIME,
    names.MAIN_THREAD_RUN_DELAY,
    names.SYSTEM_CPU_TIME,
    names.PROCESS_WRITE_CALLS,
)
_LEVELS: Final = (names.CGROUP_CPU_LIMIT, names.SYSTEM_CPU_COUNT, names.PROCESS_THREADS)
# Counters of a restarted process start at zero: only its last life is read.
_READ: Final = """WITH bounds AS (SELECT min(start_ns) AS first, max(end_ns) AS last FROM steps
    WHERE phase = $phase),
among AS (SELECT r.*, last FROM readings r, bounds
    WHERE time_ns BETWEEN first AND last + $slack_ns),
latest AS (SELECT rank, max(restart) AS restart FROM among WHERE rank IS NOT NULL GROUP BY rank)
SELECT coalesce(a.rank, -1), a.name, a.labels, arg_min(value, time_ns), arg_max(value, time_ns),
    (max(time_ns) - min(time_ns)) / 1e9, avg(value)
FROM among a LEFT JOIN latest l ON a.rank = l.rank
WHERE a.name IN (SELECT unnest($names)) AND (a.rank IS NULL OR a.restart = l.restart)
AND (a.name <> $writes OR time_ns <= last)
GROUP BY ALL ORDER BY ALL"""


class OfRank(NamedTuple):
    """CPU use of one rank's processes; in CPUs, or average threads."""

    rank: int
    cpus: float
    """CPUs that the processes may use."""
    main_on_cpu: float
    """Share of the time in which the main thread ran."""
    main_waits: float
    """Share of the time in which the main thread was ready to run and had no CPU."""
    on_cpu: dict[str, float]
    """CPUs used, by role."""
    waiting: dict[str, float]
    """Runnable threads without a CPU, by role."""
    threads: float
    """Threads of the training process, whatever they do."""
    writes: float | None
    """Write system calls of the training process per second; None: not counted."""
    over_s: float
    """Time between the readings behind these figures."""

    @property
    def runnable(self) -> float:
        """Return the average number of threads that ran or waited."""
        return sum(self.on_cpu.values()) + sum(self.waiting.values())

    def runnable_of(self, role: str) -> float:
        """Return the average number of runnable threads of one role."""
        return self.on_cpu.get(role, 0.0) + self.waiting.get(role, 0.0)


class OfHost(NamedTuple):
    """The machine on which all ranks ran; in CPUs."""

    cpus: float
    busy: float
    stolen: float
    """CPUs that the hypervisor gave to other guests."""


class CpuShares(NamedTuple):
    """CPU shares of all ranks and of the host."""

    ranks: list[OfRank]
    host: OfHost | None
    """None: several hosts, or not read."""

    @property
    def others(self) -> float:
        """Return the CPUs used by processes that are not part of the run."""
        if self.host is None:
            return 0.0
        own = sum(sum(rank.on_cpu.values()) for rank in self.ranks)
        return max(0.0, self.host.busy - own)


_Rates = dict[tuple[str, str], float]
"""Rates by metric and by the labels that distinguish its series."""


@once_a_run
def read_cpu_shares(numbers: RunNumbers) -> CpuShares:
    """Return the CPU shares during the main phase's steps, without ranks with too few readings."""
    store, steps = numbers.store, numbers.summary.steps
    phase = steps.phase if steps else ""
    grown: dict[int, _Rates] = {}
    levels: dict[int, _Rates] = {}
    spans_s: dict[int, float] = {}
    for rank, name, labels, first, last, over_s, mean in store.rows(
        _READ,
        phase=phase,
        slack_ns=10**9,
        # Writes after the last step, such as a traceback, are not the loop's.
        writes=names.PROCESS_WRITE_CALLS.name,
        names=[one.name for one in (*_GROWING, *_LEVELS)],
    ):
        told = json.loads(labels or "{}")
        key = name, told.get(names.PROCESS_ROLE) or told.get(names.CPU_MODE, "")
        if any(name == one.name for one in _LEVELS):
            levels.setdefault(rank, {})[key] = mean
        elif over_s >= _SHORTEST_S and last >= first:
            rates = grown.setdefault(rank, {})  # each CPU of a host has a series of its own
            rates[key] = rates.get(key, 0.0) + (last - first) / over_s
            spans_s[rank] = over_s
    host = _host(grown, levels, _count_hosts(store))
    known = (
        _rank(rank, rates, levels.get(rank, {}), host, spans_s[rank])
        for rank, rates in grown.items()
        if rank >= 0
    )
    return CpuShares([rank for rank in known if rank is not None], host)


def _count_hosts(store: Store) -> int:
    ((hosts,),) = store.rows("SELECT count(DISTINCT host) FROM processes")
    return int(hosts)


def _host(grown: dict[int, _Rates], levels: dict[int, _Rates], hosts: int) -> OfHost | None:
    rates = grown.get(-1, {})
    cpus = levels.get(-1, {}).get((names.SYSTEM_CPU_COUNT.name, ""))
    time = names.SYSTEM_CPU_TIME.name
    if hosts != 1 or not cpus or (time, "user") not in rates:
        return None
    return OfHost(
        cpus=cpus,
        busy=sum(rates.get((time, mode), 0.0) for mode in BUSY),
        stolen=rates.get((time, STOLEN), 0.0),
    )


def _rank(
    rank: int, rates: _Rates, levels: _Rates, host: OfHost | None, over_s: float
) -> OfRank | None:
    cpus = levels.get((names.CGROUP_CPU_LIMIT.name, "")) or (host.cpus if host else None)
    on_cpu = rates.get((names.MAIN_THREAD_CPU_TIME.name, ""))
    waits = rates.get((names.MAIN_THREAD_RUN_DELAY.name, ""))
    if not cpus or on_cpu is None or waits is None:
        return None
    used: dict[str, float] = {}
    for (name, label), rate in rates.items():
        # Each role has two series: user and system.
        if name == names.PROCESS_CPU_TIME.name:
            used[label] = used.get(label, 0.0) + rate
    return OfRank(
        rank=rank,
        cpus=cpus,
        main_on_cpu=min(1.0, on_cpu),
        main_waits=min(1.0, waits),
        on_cpu=used,
        waiting={
            label: rate
            for (name, label), rate in rates.items()
            if name == names.PROCESS_RUN_DELAY.name
        },
        threads=levels.get((names.PROCESS_THREADS.name, MAIN), 0.0),
        writes=rates.get((names.PROCESS_WRITE_CALLS.name, "")),
        over_s=over_s,
    )
