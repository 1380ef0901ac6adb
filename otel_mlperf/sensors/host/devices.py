"""Traffic of the host's disks and network interfaces, from psutil."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from psutil import LINUX

from otel_mlperf import names
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
"""Prefixes of interfaces that carry traffic of other interfaces, or none."""


class Count(NamedTuple):
    """Counter of a device."""

    metric: Metric
    field: str
    """Field of psutil; absent on some systems."""
    direction: str = ""
    level: Level = "basic"
    per_unit: int = 1


class Devices(NamedTuple):
    """Kind of device: its function of psutil, its labels, its counters and its filter."""

    function: str
    option: str
    name: str
    direction: str
    choose: Callable[[Collection[str], Path], list[str]]
    counts: tuple[Count, ...]


def real_disks(disks: Collection[str], sys: Path) -> list[str]:
    """Return disks that are not on others (partitions, RAID) or in memory: no byte counts twice."""
    # sysfs writes "!" for the slash of names such as cciss/c0d0. Other systems list disks alone.
    folders = {name: sys / "block" / name.replace("/", "!") / "device" for name in disks}
    return [name for name, folder in folders.items() if not LINUX or os.path.exists(folder)]


def outer_interfaces(interfaces: Collection[str], sys: Path) -> list[str]:
    """Return real devices; in a container, which has none, all that are not virtual by name."""
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
        """Return the counts of each device that is shown."""
        options = {self._kind.option: True, "nowrap": False}
        devices = read_psutil(self._kind.function, **options) or {}
        # Only on changes: checking whether a device is real costs a system call for each.
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
