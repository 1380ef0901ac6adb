"""How full is the disk that holds the run folder?

Apart from the other readings of the host: a network disk that hangs holds up who asks for it, so
this one is read by a thread of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Measurement

if TYPE_CHECKING:
    from pathlib import Path


class FilesystemSensor:
    """The filesystem that ``folder`` lies on."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._mountpoint = _mountpoint(self._folder)

    def read(self) -> list[Measurement]:
        """Space by state, whose sum is the size; and the share in use."""
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return []
        size = found.f_frsize
        labels = {names.MOUNTPOINT: self._mountpoint}
        used, free = (found.f_blocks - found.f_bfree) * size, found.f_bavail * size
        states = {"used": used, "free": free, "reserved": (found.f_bfree - found.f_bavail) * size}
        measured = [
            Measurement(names.FILESYSTEM_USAGE.name, {**labels, names.FILESYSTEM_STATE: name}, n)
            for name, n in states.items()
        ]
        measured.append(Measurement(names.FILESYSTEM_LIMIT.name, labels, found.f_blocks * size))
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
