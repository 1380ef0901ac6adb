"""CPU use and CPU waits during steps, of a run's threads and of other processes.

Figures are rates of counters between the first and the last reading during steps. CPU seconds per
second are *CPUs*. Seconds of CPU wait per second are the average number of waiting threads.

``waits_of_steps`` returns the share of time in which a rank waited for CPUs in a range of steps. If
a step takes longer only because of such waits, its own work has not become slower. CPU time that a
hypervisor gave to other guests (steal) also counts as a wait. Linux reports steal per machine only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.store.table_reader import Store


MAIN: Final = "main"
_SHORTEST_S: Final = 1.4
"""Minimum time between first and last reading: a shorter time is not representative."""
BUSY: Final = ("user", "nice", "system", "interrupt")
"""CPU modes in which a CPU works."""
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
# Counters of a restarted process start at zero: only the last restart of each rank is read.
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


class RankCpu(NamedTuple):
    """CPU use of one rank's processes during steps: means over time."""

    rank: int
    cpus: float
    """CPUs that the processes may use."""
    main_on_cpu: float
    """Share of the time in which the main thread ran."""
    main_waits: float
    """Share of the time in which the main thread was ready to run and had no CPU."""
    on_cpu: dict[str, float]
    """CPUs used, by process role: ``main`` (training process) or ``worker`` (DataLoader worker)."""
    waiting: dict[str, float]
    """Average number of runnable threads without a CPU, by process role."""
    threads: float
    """Average number of threads of the training process, running or not."""
    writes: float | None
    """Write system calls of the training process per second; None: not counted."""
    over_s: float
    """Seconds between the first and the last reading from which these figures are computed."""

    @property
    def runnable(self) -> float:
        """Return the average number of threads that ran or waited for a CPU."""
        return sum(self.on_cpu.values()) + sum(self.waiting.values())

    def runnable_of(self, role: str) -> float:
        """Return the average number of threads of ``role`` that ran or waited for a CPU."""
        return self.on_cpu.get(role, 0.0) + self.waiting.get(role, 0.0)


class HostCpu(NamedTuple):
    """CPU use of the machine on which all ranks ran, as average numbers of CPUs."""

    cpus: float
    busy: float
    stolen: float
    """CPUs that the hypervisor gave to other guests."""


class CpuShares(NamedTuple):
    """CPU shares of all ranks and of the host."""

    ranks: list[RankCpu]
    host: HostCpu | None
    """None: the run has several hosts, or no readings of the host's CPUs."""

    @property
    def others(self) -> float:
        """Return the average number of CPUs used by processes outside the run; 0.0 if unknown."""
        if self.host is None:
            return 0.0
        own = sum(sum(rank.on_cpu.values()) for rank in self.ranks)
        return max(0.0, self.host.busy - own)


_Rates = dict[tuple[str, str], float]
"""Rates by metric name and by the process role or CPU mode of the series (empty: neither)."""


@once_a_run
def read_cpu_shares(numbers: RunNumbers) -> CpuShares:
    """Return the CPU shares during the main phase; ranks with too few readings are omitted."""
    store, steps = numbers.store, numbers.summary.steps
    phase = steps.phase if steps else ""
    grown: dict[int, _Rates] = {}
    levels: dict[int, _Rates] = {}
    spans_s: dict[int, float] = {}
    for rank, name, labels, first, last, over_s, mean in store.rows(
        _READ,
        phase=phase,
        slack_ns=10**9,
        # Excludes writes after the last step, such as a traceback: the loop did not make them.
        writes=names.PROCESS_WRITE_CALLS.name,
        names=[one.name for one in (*_GROWING, *_LEVELS)],
    ):
        series_labels = json.loads(labels or "{}")
        key = name, series_labels.get(names.PROCESS_ROLE) or series_labels.get(names.CPU_MODE, "")
        if any(name == one.name for one in _LEVELS):
            levels.setdefault(rank, {})[key] = mean
        elif over_s >= _SHORTEST_S and last >= first:
            rates = grown.setdefault(rank, {})  # the rates of a host are summed over its CPUs
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


def _host(grown: dict[int, _Rates], levels: dict[int, _Rates], hosts: int) -> HostCpu | None:
    rates = grown.get(-1, {})
    cpus = levels.get(-1, {}).get((names.SYSTEM_CPU_COUNT.name, ""))
    time = names.SYSTEM_CPU_TIME.name
    if hosts != 1 or not cpus or (time, "user") not in rates:
        return None
    return HostCpu(
        cpus=cpus,
        busy=sum(rates.get((time, mode), 0.0) for mode in BUSY),
        stolen=rates.get((time, STOLEN), 0.0),
    )


def _rank(
    rank: int, rates: _Rates, levels: _Rates, host: HostCpu | None, over_s: float
) -> RankCpu | None:
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
    return RankCpu(
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


_CPU: Final = names.PROCESS_CPU_TIME.name
_DELAY: Final = names.PROCESS_RUN_DELAY.name
_MAIN_CPU: Final = names.MAIN_THREAD_CPU_TIME.name
_MAIN_DELAY: Final = names.MAIN_THREAD_RUN_DELAY.name
_HOST_CPU: Final = names.SYSTEM_CPU_TIME.name
_READ_WAITS: Final = """SELECT rank, restart, name, labels, list(time_ns ORDER BY time_ns),
    list(value ORDER BY time_ns) FROM readings
    WHERE name IN (SELECT unnest($names)) AND rank IS NOT NULL GROUP BY ALL ORDER BY ALL"""
_READ_HOST: Final = """SELECT labels, list(time_ns ORDER BY time_ns), list(value ORDER BY time_ns)
    FROM readings WHERE name = $name AND rank IS NULL
    AND (SELECT count(DISTINCT host) FROM processes) = 1 GROUP BY ALL ORDER BY ALL"""
_BETWEEN: Final = """SELECT min(start_ns), max(end_ns) FROM steps
    WHERE phase = $phase AND number BETWEEN $first AND $last"""

_Curve = tuple["NDArray[np.float64]", "NDArray[np.float64]"]
"""Times in ns, and the value of a counter at each time."""


def waits_of_steps(numbers: RunNumbers, first: int, last: int) -> float | None:
    """Return the share of the steps' time, 0.0 to 1.0, in which threads waited for a CPU.

    ``first`` and ``last`` are step numbers. The rank that waited most counts. Time that a
    hypervisor stole is added. The result is None if no rank has enough readings.
    """
    steps = numbers.summary.steps
    ((begin_ns, end_ns),) = numbers.store.rows(
        _BETWEEN, phase=steps.phase if steps else "", first=first, last=last
    )
    if begin_ns is None:
        return None
    known = (_waits(curves, begin_ns, end_ns) for curves in _read_curves(numbers).values())
    waits = max((waits for waits in known if waits is not None), default=None)
    if waits is None:
        return None
    return 1 - (1 - waits) * (1 - _stolen(_read_host(numbers), begin_ns, end_ns))


@once_a_run
def _read_host(numbers: RunNumbers) -> dict[str, list[_Curve]]:
    """Return by CPU mode the curves of the CPUs' time; empty if the run has several hosts."""
    modes: dict[str, list[_Curve]] = {}
    for labels, times, values in numbers.store.rows(_READ_HOST, name=_HOST_CPU):
        mode = json.loads(labels or "{}").get(names.CPU_MODE, "")
        modes.setdefault(mode, []).append(_curve(times, values))
    return modes


def _stolen(modes: dict[str, list[_Curve]], begin_ns: float, end_ns: float) -> float:
    grown = {mode: _grown(curves, begin_ns, end_ns) for mode, curves in modes.items()}
    wanted = sum(grown.get(mode, 0.0) for mode in (*BUSY, STOLEN))
    return grown.get(STOLEN, 0.0) / wanted if wanted > 0 else 0.0


@once_a_run
def _read_curves(numbers: RunNumbers) -> dict[tuple[int, int], dict[str, list[_Curve]]]:
    """Return the curves of each training process, by (rank, restart) and then by metric.

    The process's CPU time has two curves: user and system.
    """
    processes: dict[tuple[int, int], dict[str, list[_Curve]]] = {}
    wanted = [_CPU, _DELAY, _MAIN_CPU, _MAIN_DELAY]
    for rank, restart, name, labels, times, values in numbers.store.rows(_READ_WAITS, names=wanted):
        if json.loads(labels or "{}").get(names.PROCESS_ROLE, MAIN) == MAIN:
            of_process = processes.setdefault((rank, restart), {})
            of_process.setdefault(name, []).append(_curve(times, values))
    return processes


def _curve(times: list[int], values: list[float]) -> _Curve:
    return np.array(times, dtype=np.float64), np.array(values, dtype=np.float64)


def _waits(curves: dict[str, list[_Curve]], begin_ns: int, end_ns: int) -> float | None:
    if _MAIN_CPU not in curves or _MAIN_DELAY not in curves:
        return None
    times = curves[_MAIN_DELAY][0][0]
    within = times[(times >= begin_ns) & (times <= end_ns)]
    if len(within) < 2:
        return None
    begin, end = float(within[0]), float(within[-1])
    over_s = (end - begin) / 1e9
    cpu, delay = _grown(curves[_MAIN_CPU], begin, end), _grown(curves[_MAIN_DELAY], begin, end)
    waiting = _grown(curves.get(_DELAY, []), begin, end)
    runnable = waiting + _grown(curves.get(_CPU, []), begin, end)
    # Joint work ends with the last thread: the waits of all threads slow down each of them.
    paced = (cpu + delay) * waiting / runnable if runnable else 0.0
    return min(1.0, max(delay, paced) / over_s)


def _grown(curves: list[_Curve], begin_ns: float, end_ns: float) -> float:
    return sum(
        float(np.diff(np.interp([begin_ns, end_ns], times, values))[0]) for times, values in curves
    )
