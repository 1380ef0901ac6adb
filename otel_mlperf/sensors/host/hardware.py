"""Frequency and temperatures of the CPUs.

This is own code. psutil reads three files a CPU for the frequency (3.5 ms for 128 CPUs, here 1.5
ms). For temperatures it reads all sensors and their limits, without the chip that ``hw.id`` names.
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
"""Names of drivers of CPU sensors below ``/sys/class/hwmon``."""
_ZONES: Final = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal")
"""Types of ``/sys/class/thermal`` for the CPU, on machines without such a driver."""
_PART: Final = ("Core ", "Tccd")
"""Labels of single cores and chiplets: the whole package is enough."""
_INPUT: Final = re.compile(r"temp\d+_input")
_MILLIDEGREES: Final = re.compile(rb"-?\d{1,6}\n?$")


def find_thermometers(sys: Path) -> list[tuple[Path, dict[str, str]]]:
    """Return file and labels of each CPU package, from drivers or else the kernel's zones."""
    found = []
    for chip in entries(sys / "class" / "hwmon"):
        folder = sys / "class" / "hwmon" / chip
        driver = _text(folder / "name")
        for file in entries(folder) if driver in _DRIVERS else []:
            label = _text(folder / file.replace("_input", "_label")) or "cpu"
            if _INPUT.fullmatch(file) and not label.startswith(_PART):
                found.append((folder / file, f"{chip}/{driver}", label))
    for zone in [] if found else entries(sys / "class" / "thermal"):
        folder = sys / "class" / "thermal" / zone
        kind = _text(folder / "type")
        if kind in _ZONES:
            found.append((folder / "temp", zone, kind))
    return [
        (file, {names.HW_ID: chip, names.HW_SENSOR_LOCATION: location})
        for file, chip, location in found
    ]


def _text(path: Path) -> str:
    return read_once(path).decode("utf-8", "replace").strip()


class HardwareSensor:
    """Sensor of the CPU frequency and of one temperature for each CPU package."""

    def __init__(self, proc: Path, sys: Path) -> None:
        self._cpuinfo = proc / "cpuinfo"
        self._frequencies = sorted(sys.glob(_FREQUENCIES))
        self._thermometers = find_thermometers(sys)

    def read(self) -> list[Measurement]:
        """Return hertz and degrees Celsius; nothing of a sensor that does not answer."""
        texts = [(read_once(path), labels) for path, labels in self._thermometers]
        return self._frequency() + [
            Measurement(names.HW_TEMPERATURE.name, labels, int(text) / 1e3)
            for text, labels in texts
            if _MILLIDEGREES.match(text)
        ]

    def _frequency(self) -> list[Measurement]:
        """Return the mean over the CPUs; in virtual machines the hypervisor's value."""
        kilohertz = [number(read_once(path).strip()) for path in self._frequencies]
        hertz = [1e3 * speed for speed in kilohertz if speed]
        if not hertz:
            # Without cpufreq, as in most virtual machines; this file is long where CPUs are many.
            text = read_once(self._cpuinfo)
            hertz = [1e6 * float(speed) for speed in _MEGAHERTZ.findall(text)]
        if not hertz:
            return []
        return [Measurement(names.SYSTEM_CPU_FREQUENCY.name, {}, sum(hertz) / len(hertz))]
