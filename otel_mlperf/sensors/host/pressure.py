"""Pressure stall information of the host. Own code: psutil does not read it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import KeptFile
from otel_mlperf.sensors.measurement import Measurement

if TYPE_CHECKING:
    from pathlib import Path

_STALL: Final = re.compile(
    rb"^(some|full) avg10=(\d{1,3}\.\d\d) avg60=\S{1,9} avg300=\S{1,9} total=(\d{1,20})$",
    re.MULTILINE,
)
_RESOURCES: Final = ("cpu", "memory", "io")
_UNDEFINED: Final = ("cpu", "full")
"""The kernel writes zeros there, for old programs' sake: a whole host never waits for its CPUs."""


class Stall(NamedTuple):
    """One line of a file in ``/proc/pressure``."""

    average_ratio: float
    """Of the last ten seconds."""
    total_s: float


def parse_pressure(text: bytes) -> dict[str, Stall]:
    """``some`` and ``full``; what is not there is absent."""
    return {
        kind.decode(): Stall(float(average) / 100, int(total) / 1e6)
        for kind, average, total in _STALL.findall(text)
    }


class PressureSensor:
    """Stalls of CPUs, memory and disks."""

    def __init__(self, proc: Path) -> None:
        self._files = {
            resource: KeptFile(proc / "pressure" / resource, may_lack=False)
            for resource in _RESOURCES
        }

    def read(self) -> list[Measurement]:
        """Return how long something waited so far and in the last ten seconds, by resource."""
        measured: list[Measurement] = []
        for resource, file in self._files.items():
            for kind, stall in parse_pressure(file.read()).items():
                if (resource, kind) != _UNDEFINED:
                    labels = {names.PSI_RESOURCE: resource, names.PSI_KIND: kind}
                    measured += [
                        Measurement(names.PSI_TIME.name, labels, stall.total_s),
                        Measurement(names.PSI_AVERAGE.name, labels, stall.average_ratio),
                    ]
        return measured

    def close(self) -> None:
        """Closes its files."""
        for file in self._files.values():
            file.close()
