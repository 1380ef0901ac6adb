"""How busy are the CPUs of the host, how fast do they run, and how hot are they?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import (
    TICKS_A_SECOND,
    KeptFile,
    entries,
    number,
    numbers,
    read_once,
)
from otel_mlperf.sensors.measurement import Level, Measurement, includes

if TYPE_CHECKING:
    from pathlib import Path

_FIELDS: Final = 8
_MEGAHERTZ: Final = re.compile(rb"^cpu MHz\s*:\s*(\d{1,6}(?:\.\d{1,6})?)$", re.MULTILINE)
_CPU: Final = re.compile(rb"^cpu\d{1,6} ", re.MULTILINE)
_FREQUENCIES: Final = "devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"
_MODES: Final = ("user", "nice", "system", "idle", "iowait", "interrupt", "steal")
_LABELS: Final = {mode: {names.CPU_MODE: mode} for mode in _MODES}

Times = dict[str, int]
"""Ticks by mode."""


def parse_cpu_times(line: bytes) -> Times | None:
    """The ticks of one line of ``/proc/stat`` behind its first word.

    Guests are in ``user`` and ``nice`` already; ``interrupt`` is hard and soft ones together.
    """
    ticks = numbers(line.split(None, _FIELDS)[:_FIELDS])
    if len(ticks) < _FIELDS:
        return None
    user, nice, system, idle, iowait, hard, soft, steal = ticks
    return dict(zip(_MODES, (user, nice, system, idle, iowait, hard + soft, steal), strict=True))


def parse_total(text: bytes) -> tuple[Times | None, int]:
    """Of ``/proc/stat``: all CPUs together, and how many there are."""
    first, _, rest = _about_cpus(text).partition(b"\n")
    name, _, ticks = first.partition(b" ")
    return (parse_cpu_times(ticks) if name == b"cpu" else None), len(_CPU.findall(rest))


def parse_cpus(text: bytes) -> dict[str, Times]:
    """Of ``/proc/stat``: each CPU by its number."""
    cpus: dict[str, Times] = {}
    for line in _about_cpus(text).split(b"\n"):
        name, _, rest = line.partition(b" ")
        times = parse_cpu_times(rest) if _CPU.match(line) else None
        if times is not None:
            cpus[name[3:].decode()] = times
    return cpus


def _about_cpus(text: bytes) -> bytes:
    # The interrupts come next: one line, and on a large machine most of the file.
    return text.split(b"\nintr", 1)[0]


def shares(before: Times, now: Times) -> dict[str, float]:
    """Share of each mode in the time between two readings; empty when no tick lies between.

    share = ticks of the mode / ticks of all modes; idle and iowait may run backwards in the
    kernel, which counts as none.
    """
    passed = {mode: max(0, now[mode] - before[mode]) for mode in _MODES}
    total = sum(passed.values())
    return {mode: ticks / total for mode, ticks in passed.items()} if total else {}


class CpuSensor:
    """CPUs of the host. Level ``comprehensive`` gives the time of each CPU instead of the sum."""

    def __init__(self, level: Level, proc: Path, sys: Path) -> None:
        self._level, self._proc = level, proc
        self._stat = KeptFile(proc / "stat", may_lack=False)
        self._frequencies = sorted(sys.glob(_FREQUENCIES))
        self._before: Times | None = None

    def read(self) -> list[Measurement]:
        """Time in each mode, its shares since the reading before, and how many CPUs there are."""
        text = self._stat.read()
        total, count = parse_total(text)
        measured = self._times(text, total)
        if total and self._before:
            measured += [
                Measurement(names.SYSTEM_CPU_UTILIZATION.name, _LABELS[mode], share)
                for mode, share in shares(self._before, total).items()
            ]
        self._before = total
        if count:
            measured.append(Measurement(names.SYSTEM_CPU_COUNT.name, {}, count))
        if includes(self._level, "detailed"):
            measured += self._frequency()
        return measured

    def _times(self, text: bytes, total: Times | None) -> list[Measurement]:
        metric = names.SYSTEM_CPU_TIME.name
        if includes(self._level, "comprehensive"):
            return [
                Measurement(metric, {**_LABELS[mode], names.CPU_NUMBER: cpu}, n / TICKS_A_SECOND)
                for cpu, times in parse_cpus(text).items()
                for mode, n in times.items()
            ]
        return [
            Measurement(metric, _LABELS[mode], ticks / TICKS_A_SECOND)
            for mode, ticks in (total or {}).items()
        ]

    def _frequency(self) -> list[Measurement]:
        """Mean over the CPUs; in virtual machines what the hypervisor claims."""
        kilohertz = [number(read_once(path).strip()) for path in self._frequencies]
        hertz = [1e3 * speed for speed in kilohertz if speed]
        if not hertz:
            # Without cpufreq, as in most virtual machines; this file is long where CPUs are many.
            text = read_once(self._proc / "cpuinfo")
            hertz = [1e6 * float(speed) for speed in _MEGAHERTZ.findall(text)]
        if not hertz:
            return []
        return [Measurement(names.SYSTEM_CPU_FREQUENCY.name, {}, sum(hertz) / len(hertz))]

    def close(self) -> None:
        """Closes its file."""
        self._stat.close()


_DRIVERS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cputemp")
"""What drivers of CPU sensors call themselves below ``/sys/class/hwmon``."""
_ZONES: Final = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal")
"""Types of ``/sys/class/thermal`` that are of the CPU: for machines without such a driver."""
_PART: Final = ("Core ", "Tccd")
"""Labels of single cores and chiplets: the whole package is enough."""
_MILLIDEGREES: Final = re.compile(rb"-?\d{1,6}$")


class Thermometer:
    """One file that holds a temperature in thousandths of a degree."""

    def __init__(self, path: Path, labels: dict[str, str]) -> None:
        self._path, self._labels = path, labels

    def read(self) -> list[Measurement]:
        """Degrees Celsius; nothing while the sensor does not answer."""
        text = read_once(self._path).strip()
        if not _MILLIDEGREES.match(text):
            return []
        return [Measurement(names.HW_TEMPERATURE.name, self._labels, int(text) / 1e3)]


def find_thermometers(sys: Path) -> list[Thermometer]:
    """One for each CPU package; those of the drivers, else the thermal zones of the kernel."""
    thermometers = []
    for chip in entries(sys / "class" / "hwmon"):
        folder = sys / "class" / "hwmon" / chip
        driver = _text(folder / "name")
        if driver in _DRIVERS:
            thermometers += [
                _thermometer(folder / file, f"{chip}/{driver}", label)
                for file, label in _inputs(folder)
                if not label.startswith(_PART)
            ]
    return thermometers or [
        _thermometer(sys / "class" / "thermal" / zone / "temp", zone, kind)
        for zone in entries(sys / "class" / "thermal")
        if (kind := _text(sys / "class" / "thermal" / zone / "type")) in _ZONES
    ]


def _inputs(folder: Path) -> list[tuple[str, str]]:
    files = [name for name in entries(folder) if re.fullmatch(r"temp\d+_input", name)]
    return [(file, _text(folder / file.replace("_input", "_label")) or "cpu") for file in files]


def _thermometer(path: Path, identity: str, location: str) -> Thermometer:
    return Thermometer(path, {names.HW_ID: identity, names.HW_SENSOR_LOCATION: location})


def _text(path: Path) -> str:
    return read_once(path).decode("utf-8", "replace").strip()
