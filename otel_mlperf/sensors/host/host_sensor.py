"""Sensors of the whole host: CPUs, memory, stalls (PSI) and page faults.

CPUs and memory are read with psutil. Stalls and page faults are read from ``/proc``, because psutil
does not support them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.sensors.cgroup_files import parse_cpu_list
from otel_mlperf.sensors.host.devices import DISKS, INTERFACES, DeviceSensor, HardwareSensor
from otel_mlperf.sensors.kernel_files import PROC, SYS, KeptFile, field, has_proc, read_once
from otel_mlperf.sensors.measurement import Level, Measurement, includes
from otel_mlperf.sensors.psutil_calls import read_psutil, uptime_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_CPU_MODES: Final = {
    "user": ("user",),
    "nice": ("nice",),
    "system": ("system",),
    "idle": ("idle",),
    "iowait": ("iowait",),
    "interrupt": ("irq", "softirq"),
    "steal": ("steal",),
}
"""psutil's fields by mode; the times of guests are already included in ``user`` and ``nice``."""
_CPU_LABELS: Final = {mode: {names.CPU_MODE: mode} for mode in _CPU_MODES}

Times = dict[str, float]
"""Seconds of CPU time by mode."""


def by_mode(times: Any) -> Times:
    """Return the seconds in each mode that the system reports, from psutil's CPU times.

    Hardware and software interrupts are combined in one mode.
    """
    return {
        mode: sum(getattr(times, field) for field in fields)
        for mode, fields in _CPU_MODES.items()
        if hasattr(times, fields[0])
    }


def shares(before: Times, now: Times) -> Times:
    """Return each mode's share of the CPU time between two readings; empty if no time passed.

    share = time in the mode / time in all modes. Counters that decreased count as zero, because the
    kernel may decrease idle and iowait.
    """
    passed = {mode: max(0.0, now[mode] - before[mode]) for mode in now}
    total = sum(passed.values())
    return {mode: seconds / total for mode, seconds in passed.items()} if total else {}


class CpuSensor:
    """Sensor of the host's CPUs; level ``comprehensive`` reports times per CPU, not their sum."""

    def __init__(self, level: Level, sys: Path) -> None:
        self._level, self._online = level, sys / "devices/system/cpu/online"
        self._before: Times = {}

    def read(self) -> list[Measurement]:
        """Return CPU times, shares of CPU time since the last reading, number of CPUs and load."""
        times = by_mode(read_psutil("cpu_times"))
        measured = self._of_each_cpu() if includes(self._level, "comprehensive") else _time(times)
        if times and self._before:
            measured += [
                Measurement(names.SYSTEM_CPU_UTILIZATION.name, _CPU_LABELS[mode], share)
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
        # psutil lists only online CPUs, without numbers: if CPU 1 is offline, entry 1 is CPU 2.
        online = parse_cpu_list(read_once(self._online))
        return online if len(online) == count else range(count)

    def _load(self) -> list[Measurement]:
        wanted = [names.LOAD_1M]
        if includes(self._level, "detailed"):
            wanted += [names.LOAD_5M, names.LOAD_15M]
        loads = read_psutil("getloadavg") or ()
        return [Measurement(metric.name, {}, load) for metric, load in zip(wanted, loads)]  # noqa: B905 - fewer are wanted at level basic


def _time(times: Times, labels: dict[str, str] | None = None) -> list[Measurement]:
    return [
        Measurement(names.SYSTEM_CPU_TIME.name, {**_CPU_LABELS[mode], **(labels or {})}, seconds)
        for mode, seconds in times.items()
    ]


def by_state(memory: Any) -> dict[str, int]:
    """Return the bytes by state from psutil's ``virtual_memory``; the states sum to the total.

    used = total - free - buffers - cached. cached = page cache + reclaimable slabs, including
    shared memory and tmpfs. On systems without buffers, such as macOS, the states are only used
    (total - available) and free (available). The result is empty if the counters are inconsistent,
    because the kernel does not read them at the same time.
    """
    if not hasattr(memory, "buffers"):
        return {"used": memory.total - memory.available, "free": memory.available}
    used = memory.total - memory.free - memory.buffers - memory.cached
    states = {"used": used, "free": memory.free}
    states |= {"buffers": memory.buffers, "cached": memory.cached}
    return states if used >= 0 else {}


def read_memory(level: Level) -> list[Measurement]:
    """Return measurements of memory; from level ``detailed`` also of swap and shared memory."""
    is_detailed, memory = includes(level, "detailed"), read_psutil("virtual_memory")
    measured = _swap() if is_detailed else []
    if memory is None:
        return measured
    states, label = by_state(memory), names.MEMORY_STATE
    measured += [
        Measurement(names.SYSTEM_MEMORY.name, {label: state}, size)
        for state, size in states.items()
    ]
    measured += [
        Measurement(names.SYSTEM_MEMORY_LIMIT.name, {}, memory.total),
        Measurement(names.SYSTEM_MEMORY_AVAILABLE.name, {}, memory.available),
    ]
    if is_detailed and hasattr(memory, "shared"):
        measured.append(Measurement(names.SYSTEM_MEMORY_SHARED.name, {}, memory.shared))
    if states:
        share = states["used"] / memory.total
        measured.append(Measurement(names.SYSTEM_MEMORY_UTILIZATION.name, {label: "used"}, share))
    return measured


def _swap() -> list[Measurement]:
    swap = read_psutil("swap_memory")
    if swap is None:
        return []
    used, free = {names.PAGING_STATE: "used"}, {names.PAGING_STATE: "free"}
    measured = [
        Measurement(names.PAGING_USAGE.name, used, swap.used),
        Measurement(names.PAGING_USAGE.name, free, swap.free),
    ]
    if swap.total:
        measured.append(Measurement(names.PAGING_UTILIZATION.name, used, swap.used / swap.total))
    return measured


_STALL: Final = re.compile(
    rb"^(some|full) avg10=(\d{1,3}\.\d\d) avg60=\S{1,9} avg300=\S{1,9} total=(\d{1,20})$",
    re.MULTILINE,
)
_RESOURCES: Final = ("cpu", "memory", "io")
_UNDEFINED: Final = ("cpu", "full")
"""Line that is ignored, because a whole host cannot stall on its CPUs: it contains only zeros."""


class Stall(NamedTuple):
    """Values of one line of a file in ``/proc/pressure``."""

    average_ratio: float
    """Share of the last ten seconds in which tasks were stalled."""
    total_s: float


def parse_pressure(text: bytes) -> dict[str, Stall]:
    """Return the values of the lines ``some`` and ``full``; missing lines are absent."""
    return {
        kind.decode(): Stall(float(average) / 100, int(total) / 1e6)
        for kind, average, total in _STALL.findall(text)
    }


class PressureSensor:
    """Sensor of stalls on CPUs, memory and disks; from level ``detailed`` also of paging."""

    def __init__(self, level: Level, proc: Path) -> None:
        self._stalls = {
            resource: KeptFile(proc / "pressure" / resource, may_lack=False)
            for resource in _RESOURCES
        }
        is_detailed = includes(level, "detailed")
        self._vmstat = KeptFile(proc / "vmstat", may_lack=False) if is_detailed else None

    def read(self) -> list[Measurement]:
        """Return stall times, stall shares of the last 10 s, and at ``detailed`` page faults."""
        measured: list[Measurement] = []
        for resource, file in self._stalls.items():
            for kind, stall in parse_pressure(file.read()).items():
                if (resource, kind) != _UNDEFINED:
                    labels = {names.PSI_RESOURCE: resource, names.PSI_KIND: kind}
                    measured += [
                        Measurement(names.PSI_TIME.name, labels, stall.total_s),
                        Measurement(names.PSI_AVERAGE.name, labels, stall.average_ratio),
                    ]
        return measured + (_paging(self._vmstat.read()) if self._vmstat else [])

    def close(self) -> None:
        """Close all files of the sensor."""
        for file in (*self._stalls.values(), self._vmstat):
            if file is not None:
                file.close()


def _paging(text: bytes) -> list[Measurement]:
    faults, major = field(text, b"pgfault "), field(text, b"pgmajfault ")
    # pgfault includes major faults.
    minor = None if faults is None or major is None else max(0, faults - major)
    counts = (
        (names.PAGING_FAULTS, names.PAGING_FAULT, "minor", minor),
        (names.PAGING_FAULTS, names.PAGING_FAULT, "major", major),
        (names.PAGING_OPERATIONS, names.PAGING_DIRECTION, "in", field(text, b"pswpin ")),
        (names.PAGING_OPERATIONS, names.PAGING_DIRECTION, "out", field(text, b"pswpout ")),
    )
    return [
        Measurement(metric.name, {label: kind}, count)
        for metric, label, kind, count in counts
        if count is not None
    ]


class HostSensor:
    """Sensor of the host: CPUs, memory, disks and network.

    On systems with ``/proc``, it also reads stalls, paging, frequency and temperature.
    """

    def __init__(self, level: Level = "detailed", *, proc: Path = PROC, sys: Path = SYS) -> None:
        self._is_detailed = includes(level, "detailed")
        self._reads: list[Callable[[], list[Measurement]]] = [
            CpuSensor(level, sys).read,
            lambda: read_memory(level),
            DeviceSensor(DISKS, level, sys).read,
            DeviceSensor(INTERFACES, level, sys).read,
        ]
        self._pressure = PressureSensor(level, proc)
        if has_proc(proc):
            self._reads.append(self._pressure.read)
            if self._is_detailed:
                self._reads.append(HardwareSensor(proc, sys).read)

    def read(self) -> list[Measurement]:
        """Return the measurements of all parts; from level ``detailed`` also the uptime."""
        measured = [measurement for read in self._reads for measurement in read()]
        if self._is_detailed:
            measured.append(Measurement(names.SYSTEM_UPTIME.name, {}, uptime_s()))
        return measured

    def close(self) -> None:
        """Close all files of the sensor."""
        self._pressure.close()
