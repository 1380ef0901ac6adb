"""Traffic of the host's disks and space on the disk of the run folder, from psutil.

The second is a sensor of its own: a network disk that hangs delays whoever asks for it, so a thread
of its own reads it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from psutil import LINUX

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Level, Measurement, includes
from otel_mlperf.sensors.psutil_calls import read_psutil

if TYPE_CHECKING:
    from pathlib import Path


class DiskSensor:
    """The real disks: what lies on others (partitions, RAID) or in memory would count twice."""

    def __init__(self, level: Level, sys: Path) -> None:
        self._level, self._sys = level, sys
        self._real: dict[str, bool] = {}

    def read(self) -> list[Measurement]:
        """Return bytes and busy time; from level ``detailed`` on also operations."""
        # Without psutil's correction of wrapped counts: the kernel's own may be compared with.
        disks = read_psutil("disk_io_counters", perdisk=True, nowrap=False) or {}
        return [
            measurement
            for name, counts in disks.items()
            if self._is_real(name)
            for measurement in self._measure(name, counts)
        ]

    def _is_real(self, name: str) -> bool:
        real = self._real.get(name)
        if real is None:
            # sysfs writes "!" for the slash of names such as cciss/c0d0.
            path = self._sys / "block" / name.replace("/", "!") / "device"
            # Other systems have no sysfs, and psutil lists no partitions there.
            real = self._real[name] = not LINUX or os.path.exists(path)
        return real

    def _measure(self, name: str, counts: Any) -> list[Measurement]:
        device = {names.SYSTEM_DEVICE: name}
        read = {**device, names.DISK_DIRECTION: "read"}
        write = {**device, names.DISK_DIRECTION: "write"}
        measured = [
            Measurement(names.DISK_IO.name, read, counts.read_bytes),
            Measurement(names.DISK_IO.name, write, counts.write_bytes),
        ]
        if hasattr(counts, "busy_time"):
            measured.append(Measurement(names.DISK_IO_TIME.name, device, counts.busy_time / 1e3))
        if includes(self._level, "detailed"):
            measured += [
                Measurement(names.DISK_OPERATIONS.name, read, counts.read_count),
                Measurement(names.DISK_OPERATIONS.name, write, counts.write_count),
            ]
        return measured

    def close(self) -> None:
        """Nothing is open."""


class FilesystemSensor:
    """The filesystem that ``folder`` lies on."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._mountpoint = _mountpoint(self._folder)

    def read(self) -> list[Measurement]:
        """Return space by state, whose sum is the size, and the share in use."""
        space = read_psutil("disk_usage", self._folder)
        if space is None:
            return []
        labels = {names.MOUNTPOINT: self._mountpoint}
        # As df does: what is kept for root is neither used nor free, and the share leaves it out.
        states = {
            "used": space.used,
            "free": space.free,
            "reserved": space.total - space.used - space.free,
        }
        measured = [
            Measurement(names.FILESYSTEM_USAGE.name, {**labels, names.FILESYSTEM_STATE: name}, n)
            for name, n in states.items()
        ]
        measured.append(Measurement(names.FILESYSTEM_LIMIT.name, labels, space.total))
        if space.used + space.free:
            share = space.used / (space.used + space.free)
            measured.append(Measurement(names.FILESYSTEM_UTILIZATION.name, labels, share))
        return measured

    def close(self) -> None:
        """Nothing is open."""


def _mountpoint(folder: str) -> str:
    path = os.path.realpath(folder)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path
