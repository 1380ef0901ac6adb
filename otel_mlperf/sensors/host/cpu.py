"""CPU times, their shares, the number of CPUs and the load of the host, from psutil."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.sensors.cgroups.cgroup_limits import parse_cpu_list
from otel_mlperf.sensors.kernel_files import read_once
from otel_mlperf.sensors.measurement import Level, Measurement, includes
from otel_mlperf.sensors.psutil_calls import read_psutil

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_MODES: Final = {
    "user": ("user",),
    "nice": ("nice",),
    "system": ("system",),
    "idle": ("idle",),
    "iowait": ("iowait",),
    "interrupt": ("irq", "softirq"),
    "steal": ("steal",),
}
"""Fields of psutil by mode; guests are in ``user`` and ``nice`` already."""
_LABELS: Final = {mode: {names.CPU_MODE: mode} for mode in _MODES}

Times = dict[str, float]
"""Seconds by mode."""


def by_mode(times: Any) -> Times:
    """Return the seconds in each mode that the system counts; hard and soft interrupts are one."""
    return {
        mode: sum(getattr(times, field) for field in fields)
        for mode, fields in _MODES.items()
        if hasattr(times, fields[0])
    }


def shares(before: Times, now: Times) -> Times:
    """Return the share of each mode in the time between two readings; empty if none passed.

    share = time in the mode / time in all modes. The kernel may count idle and iowait backwards,
    which is no time.
    """
    passed = {mode: max(0.0, now[mode] - before[mode]) for mode in now}
    total = sum(passed.values())
    return {mode: seconds / total for mode, seconds in passed.items()} if total else {}


class CpuSensor:
    """Sensor of the host's CPUs. Level ``comprehensive`` reports each CPU's time, not the sum."""

    def __init__(self, level: Level, sys: Path) -> None:
        self._level, self._online = level, sys / "devices/system/cpu/online"
        self._before: Times = {}

    def read(self) -> list[Measurement]:
        """Return times, shares since the last reading, number of CPUs and load."""
        times = by_mode(read_psutil("cpu_times"))
        measured = self._of_each_cpu() if includes(self._level, "comprehensive") else _time(times)
        if times and self._before:
            measured += [
                Measurement(names.SYSTEM_CPU_UTILIZATION.name, _LABELS[mode], share)
                for mode, share in shares(self._before, times).items()
            ]
        self._before = times
        count = read_psutil("cpu_count")
        if count:
            measured.append(Measurement(names.SYSTEM_CPU_COUNT.name, {}, count))
        return measured + self._load()

    def _of_each_cpu(self) -> list[Measurement]:
        cpus = read_psutil("cpu_times", percpu=True) or []
        return [
            measurement
            for number, times in zip(self._numbers(len(cpus)), cpus, strict=True)
            for measurement in _time(by_mode(times), {names.CPU_NUMBER: str(number)})
        ]

    def _numbers(self, count: int) -> Sequence[int]:
        # psutil does not number CPUs: without CPU 1 its second entry is CPU 2.
        online = parse_cpu_list(read_once(self._online))
        return online if len(online) == count else range(count)

    def _load(self) -> list[Measurement]:
        """Return the load of the last minute.

        From level ``detailed`` upward also of 5 and 15 minutes.
        """
        wanted = [names.LOAD_1M]
        if includes(self._level, "detailed"):
            wanted += [names.LOAD_5M, names.LOAD_15M]
        loads = read_psutil("getloadavg") or ()
        return [Measurement(metric.name, {}, load) for metric, load in zip(wanted, loads)]  # noqa: B905 - fewer are wanted at level basic


def _time(times: Times, labels: dict[str, str] | None = None) -> list[Measurement]:
    return [
        Measurement(names.SYSTEM_CPU_TIME.name, {**_LABELS[mode], **(labels or {})}, seconds)
        for mode, seconds in times.items()
    ]
