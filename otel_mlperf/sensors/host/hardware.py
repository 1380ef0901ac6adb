"""Frequency and temperatures of the CPUs.

Own code: psutil reads three files a CPU for the frequency (3.5 ms for 128 CPUs, here 1.5 ms), and
for temperatures all sensors and their limits, without the chip that ``hw.id`` names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import entries, number, read_once
from otel_mlperf.sensors.measurement import Measurement

if TYPE_CHECKING:
    from pathlib import Path

_MEGAHERTZ: Final = re.compile(rb"^cpu MHz\s*:\s*(\d{1,6}(?:\.\d{1,6})?)$", re.MULTILINE)
_FREQUENCIES: Final = "devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"
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


class HardwareSensor:
    """CPU frequency and one temperature for each CPU package."""

    def __init__(self, proc: Path, sys: Path) -> None:
        self._cpuinfo = proc / "cpuinfo"
        self._frequencies = sorted(sys.glob(_FREQUENCIES))
        self._thermometers = find_thermometers(sys)

    def read(self) -> list[Measurement]:
        """Return what the sensors say now; nothing for one that does not answer."""
        measured = self._frequency()
        for thermometer in self._thermometers:
            measured += thermometer.read()
        return measured

    def _frequency(self) -> list[Measurement]:
        """Mean over the CPUs; in virtual machines what the hypervisor claims."""
        kilohertz = [number(read_once(path).strip()) for path in self._frequencies]
        hertz = [1e3 * speed for speed in kilohertz if speed]
        if not hertz:
            # Without cpufreq, as in most virtual machines; this file is long where CPUs are many.
            text = read_once(self._cpuinfo)
            hertz = [1e6 * float(speed) for speed in _MEGAHERTZ.findall(text)]
        if not hertz:
            return []
        return [Measurement(names.SYSTEM_CPU_FREQUENCY.name, {}, sum(hertz) / len(hertz))]

    def close(self) -> None:
        """Nothing is open."""
