"""Sensor of the free and used space on the run folder's file system, based on psutil.

A network file system may hang and block the reader. Therefore a separate thread reads this sensor.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Measurement
from otel_mlperf.sensors.psutil_calls import read_psutil

if TYPE_CHECKING:
    from pathlib import Path


class FilesystemSensor:
    """Sensor of the space on the file system that contains ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._mountpoint = _mountpoint(self._folder)

    def read(self) -> list[Measurement]:
        """Return space by state (the states sum to the total size), and the used share."""
        space = read_psutil("disk_usage", self._folder)
        if space is None:
            return []
        labels = {names.MOUNTPOINT: self._mountpoint}
        # As in df: space reserved for root is neither used nor free, and excluded from the share.
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
        """Do nothing, because no resource is open."""


def _mountpoint(folder: str) -> str:
    path = os.path.realpath(folder)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path
