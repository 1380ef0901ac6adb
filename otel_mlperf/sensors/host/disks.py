"""What do the disks of the host read and write, and how full is that of the run folder?

The second is a sensor of its own: a network disk that hangs holds up who asks for it, so it is read
by a thread of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import KeptFile, numbers
from otel_mlperf.sensors.measurement import Level, Measurement, includes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SECTOR_BYTES: Final = 512
"""Of ``/proc/diskstats``, whatever the disk's own sectors are."""
_FIELDS: Final = 11


class DiskCounts(NamedTuple):
    """One line of ``/proc/diskstats``."""

    name: str
    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    busy_ms: int


def parse_disks(text: bytes, is_wanted: Callable[[str], bool]) -> Iterator[DiskCounts]:
    """Wanted disks whose line has the fields which kernels write since 2.6.25."""
    for line in text.split(b"\n"):
        words = line.split(None, 3)
        name = words[2].decode("utf-8", "replace") if len(words) > 3 else ""
        if not name or not is_wanted(name):
            continue
        counts = numbers(words[3].split(None, _FIELDS)[:_FIELDS])
        if len(counts) == _FIELDS:
            reads, _, read, _, writes, _, written, _, _, busy_ms, _ = counts
            yield DiskCounts(
                name, reads, read * _SECTOR_BYTES, writes, written * _SECTOR_BYTES, busy_ms
            )


class DiskSensor:
    """The real disks: what lies on others (partitions, RAID) or in memory would count twice."""

    def __init__(self, level: Level, proc: Path, sys: Path) -> None:
        self._level, self._sys = level, sys
        self._diskstats = KeptFile(proc / "diskstats", may_lack=False)
        self._real: dict[str, bool] = {}

    def read(self) -> list[Measurement]:
        """Bytes and busy time; from level ``detailed`` on also operations."""
        measured: list[Measurement] = []
        for disk in parse_disks(self._diskstats.read(), self._is_real):
            measured += self._measure(disk)
        return measured

    def _is_real(self, name: str) -> bool:
        real = self._real.get(name)
        if real is None:
            # sysfs writes "!" for the slash of names such as cciss/c0d0.
            path = self._sys / "block" / name.replace("/", "!") / "device"
            real = self._real[name] = os.path.exists(path)
        return real

    def _measure(self, disk: DiskCounts) -> list[Measurement]:
        device = {names.SYSTEM_DEVICE: disk.name}
        read = {**device, names.DISK_DIRECTION: "read"}
        write = {**device, names.DISK_DIRECTION: "write"}
        measured = [
            Measurement(names.DISK_IO.name, read, disk.read_bytes),
            Measurement(names.DISK_IO.name, write, disk.written_bytes),
            Measurement(names.DISK_IO_TIME.name, device, disk.busy_ms / 1e3),
        ]
        if includes(self._level, "detailed"):
            measured += [
                Measurement(names.DISK_OPERATIONS.name, read, disk.reads),
                Measurement(names.DISK_OPERATIONS.name, write, disk.writes),
            ]
        return measured

    def close(self) -> None:
        """Closes its file."""
        self._diskstats.close()


class FilesystemSensor:
    """The filesystem that ``folder`` lies on."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._mountpoint = _mountpoint(self._folder)

    def read(self) -> list[Measurement]:
        """Space by state, whose sum is the size; and the share in use."""
        try:
            filesystem = os.statvfs(self._folder)
        except OSError:
            return []
        size = filesystem.f_frsize
        labels = {names.MOUNTPOINT: self._mountpoint}
        # As df does: what is kept for root is neither used nor free, and the share leaves it out.
        used, free = (filesystem.f_blocks - filesystem.f_bfree) * size, filesystem.f_bavail * size
        states = {
            "used": used,
            "free": free,
            "reserved": (filesystem.f_bfree - filesystem.f_bavail) * size,
        }
        measured = [
            Measurement(names.FILESYSTEM_USAGE.name, {**labels, names.FILESYSTEM_STATE: name}, n)
            for name, n in states.items()
        ]
        measured.append(
            Measurement(names.FILESYSTEM_LIMIT.name, labels, filesystem.f_blocks * size)
        )
        if used + free:
            share = used / (used + free)
            measured.append(Measurement(names.FILESYSTEM_UTILIZATION.name, labels, share))
        return measured

    def close(self) -> None:
        """Nothing is open."""


def _mountpoint(folder: str) -> str:
    path = os.path.realpath(folder)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path
