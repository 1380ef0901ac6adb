"""Sensors of disk and network traffic, and of the CPUs' frequency and temperatures.

The traffic is read with psutil. Frequency and temperatures are read without psutil: for the
frequency, psutil reads three files per CPU (3.5 ms for 128 CPUs, instead of 1.5 ms). For
temperatures, psutil reads all sensors and their limits, but not the chip's name, which is needed
for ``hw.id``.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from psutil import LINUX

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import entries, number, read_once
from otel_mlperf.sensors.measurement import Level, Measurement, includes
from otel_mlperf.sensors.psutil_calls import read_psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from otel_mlperf.names import Metric

_VIRTUAL: Final = (
    "lo", "veth", "docker", "br-", "virbr", "cni", "cali", "flannel", "ifb", "dummy", "tunl",
    "sit", "ip6tnl", "gre", "erspan", "tap", "vnet", "utun", "awdl", "llw", "gif", "stf", "bridge",
)  # fmt: skip
"""Name prefixes of virtual interfaces, whose traffic is that of other interfaces, or none."""


class Count(NamedTuple):
    """Counter of a disk or network interface, and its metric."""

    metric: Metric
    field: str
    """Field of psutil's result; missing on some systems."""
    direction: str = ""
    level: Level = "basic"
    per_unit: int = 1


class Devices(NamedTuple):
    """Kind of device: psutil function, labels, filter and counters."""

    function: str
    option: str
    name: str
    direction: str
    choose: Callable[[Collection[str], Path], list[str]]
    counts: tuple[Count, ...]


def real_disks(disks: Collection[str], sys: Path) -> list[str]:
    """Return the physical disks among ``disks``, so that no byte counts twice.

    Partitions, RAID arrays and memory disks are excluded.
    """
    # sysfs writes "!" instead of "/" in names such as cciss/c0d0. Other systems list only disks.
    folders = {name: sys / "block" / name.replace("/", "!") / "device" for name in disks}
    return [name for name, folder in folders.items() if not LINUX or os.path.exists(folder)]


def outer_interfaces(interfaces: Collection[str], sys: Path) -> list[str]:
    """Return the physical network interfaces among ``interfaces``.

    If no interface is physical, as in a container, all interfaces are returned except those with
    the name of a virtual interface.
    """
    folder = sys / "class" / "net"
    real = [name for name in interfaces if os.path.exists(folder / name / "device")]
    return real or [name for name in interfaces if not name.startswith(_VIRTUAL)]


DISKS: Final = Devices(
    "disk_io_counters", "perdisk", names.SYSTEM_DEVICE, names.DISK_DIRECTION, real_disks,
    (
        Count(names.DISK_IO, "read_bytes", "read"),
        Count(names.DISK_IO, "write_bytes", "write"),
        Count(names.DISK_IO_TIME, "busy_time", per_unit=1000),
        Count(names.DISK_OPERATIONS, "read_count", "read", "detailed"),
        Count(names.DISK_OPERATIONS, "write_count", "write", "detailed"),
    ),
)  # fmt: skip
INTERFACES: Final = Devices(
    "net_io_counters", "pernic", names.NETWORK_INTERFACE, names.NETWORK_DIRECTION, outer_interfaces,
    (
        Count(names.NETWORK_IO, "bytes_recv", "receive"),
        Count(names.NETWORK_IO, "bytes_sent", "transmit"),
        Count(names.NETWORK_PACKETS, "packets_recv", "receive", "detailed"),
        Count(names.NETWORK_PACKETS, "packets_sent", "transmit", "detailed"),
        Count(names.NETWORK_DROPPED, "dropin", "receive", "detailed"),
        Count(names.NETWORK_DROPPED, "dropout", "transmit", "detailed"),
        Count(names.NETWORK_ERRORS, "errin", "receive", "detailed"),
        Count(names.NETWORK_ERRORS, "errout", "transmit", "detailed"),
    ),
)  # fmt: skip


class DeviceSensor:
    """Sensor of all devices of one kind."""

    def __init__(self, kind: Devices, level: Level, sys: Path) -> None:
        self._kind, self._sys = kind, sys
        self._counts = [count for count in kind.counts if includes(level, count.level)]
        self._seen: Collection[str] = ()
        self._shown: Collection[str] = ()

    def read(self) -> list[Measurement]:
        """Return the counters of each selected device."""
        options = {self._kind.option: True, "nowrap": False}
        devices = read_psutil(self._kind.function, **options) or {}
        # The filter runs only if devices have changed, because it costs a system call per device.
        if devices.keys() != self._seen:
            self._seen, self._shown = set(devices), self._kind.choose(devices, self._sys)
        return [
            Measurement(count.metric.name, self._labels(name, count), value / count.per_unit)
            for name in self._shown
            for count in self._counts
            if (value := getattr(devices[name], count.field, None)) is not None
        ]

    def _labels(self, name: str, count: Count) -> dict[str, str]:
        direction = {self._kind.direction: count.direction} if count.direction else {}
        return {self._kind.name: name, **direction}


_MEGAHERTZ: Final = re.compile(rb"^cpu MHz\s*:\s*(\d{1,6}(?:\.\d{1,6})?)$", re.MULTILINE)
_FREQUENCIES: Final = "devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"
_DRIVERS: Final = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cputemp")
"""Names of CPU temperature drivers below ``/sys/class/hwmon``."""
_ZONES: Final = ("x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal")
"""Types of CPU zones below ``/sys/class/thermal``, used if no driver is found."""
_PART: Final = ("Core ", "Tccd")
"""Label prefixes of single cores and chiplets, which are skipped, because packages are read."""
_INPUT: Final = re.compile(r"temp\d+_input")
_MILLIDEGREES: Final = re.compile(rb"-?\d{1,6}\n?$")


def find_thermometers(sys: Path) -> list[tuple[Path, dict[str, str]]]:
    """Return the temperature file and labels of each CPU package.

    The files are those of drivers or, if no driver is found, of thermal zones.
    """
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
        """Return the frequency in Hz and temperatures in °C; unreadable values are absent."""
        texts = [(read_once(path), labels) for path, labels in self._thermometers]
        return self._frequency() + [
            Measurement(names.HW_TEMPERATURE.name, labels, int(text) / 1e3)
            for text, labels in texts
            if _MILLIDEGREES.match(text)
        ]

    def _frequency(self) -> list[Measurement]:
        kilohertz = [number(read_once(path).strip()) for path in self._frequencies]
        hertz = [1e3 * speed for speed in kilohertz if speed]
        if not hertz:
            # Fallback without cpufreq, as in most virtual machines; long if there are many CPUs.
            text = read_once(self._cpuinfo)
            hertz = [1e6 * float(speed) for speed in _MEGAHERTZ.findall(text)]
        if not hertz:
            return []
        return [Measurement(names.SYSTEM_CPU_FREQUENCY.name, {}, sum(hertz) / len(hertz))]
