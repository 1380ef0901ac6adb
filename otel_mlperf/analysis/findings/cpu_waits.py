"""Share of a range of steps in which a rank waited for CPUs, because of contention or steal time.

A step that takes longer only because it waits more has not become slower itself. CPU time that a
hypervisor gave to other guests (steal) is such a wait, too. Linux reports it per machine only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.findings.cpu_shares import BUSY, MAIN, STOLEN
from otel_mlperf.analysis.findings.run_numbers import once_a_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_CPU: Final = names.PROCESS_CPU_TIME.name
_DELAY: Final = names.PROCESS_RUN_DELAY.name
_MAIN_CPU: Final = names.MAIN_THREAD_CPU_TIME.name
_MAIN_DELAY: Final = names.MAIN_THREAD_RUN_DELAY.name
_HOST_CPU: Final = names.SYSTEM_CPU_TIME.name
_READ: Final = """SELECT rank, restart, name, labels, list(time_ns ORDER BY time_ns),
    list(value ORDER BY time_ns) FROM readings
    WHERE name IN (SELECT unnest($names)) AND rank IS NOT NULL GROUP BY ALL ORDER BY ALL"""
_READ_HOST: Final = """SELECT labels, list(time_ns ORDER BY time_ns), list(value ORDER BY time_ns)
    FROM readings WHERE name = $name AND rank IS NULL
    AND (SELECT count(DISTINCT host) FROM processes) = 1 GROUP BY ALL ORDER BY ALL"""
_BETWEEN: Final = """SELECT min(start_ns), max(end_ns) FROM steps
    WHERE phase = $phase AND number BETWEEN $first AND $last"""

_Curve = tuple["NDArray[np.float64]", "NDArray[np.float64]"]
"""Times, and the cumulative count at each time."""


def waits_of_steps(numbers: RunNumbers, first: int, last: int) -> float | None:
    """Return the share of time, 0.0 to 1.0, in which threads were ready to run without a CPU.

    The rank that waited most counts; None if too few readings exist in the steps.
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
    """Return CPU time of the machine by mode, one curve per CPU; empty for several machines."""
    modes: dict[str, list[_Curve]] = {}
    for labels, times, values in numbers.store.rows(_READ_HOST, name=_HOST_CPU):
        mode = json.loads(labels or "{}").get(names.CPU_MODE, "")
        modes.setdefault(mode, []).append(_curve(times, values))
    return modes


def _stolen(modes: dict[str, list[_Curve]], begin_ns: float, end_ns: float) -> float:
    """Return the stolen share of the time that the machine's CPUs would have worked."""
    grown = {mode: _grown(curves, begin_ns, end_ns) for mode, curves in modes.items()}
    wanted = sum(grown.get(mode, 0.0) for mode in (*BUSY, STOLEN))
    return grown.get(STOLEN, 0.0) / wanted if wanted > 0 else 0.0


@once_a_run
def _read_curves(numbers: RunNumbers) -> dict[tuple[int, int], dict[str, list[_Curve]]]:
    """Return the curves of each process of a rank, by metric; CPU time has user and system."""
    processes: dict[tuple[int, int], dict[str, list[_Curve]]] = {}
    wanted = [_CPU, _DELAY, _MAIN_CPU, _MAIN_DELAY]
    for rank, restart, name, labels, times, values in numbers.store.rows(_READ, names=wanted):
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
