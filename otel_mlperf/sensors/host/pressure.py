"""Stalls (PSI) and page faults of the host. Own code: psutil reads neither."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import KeptFile, field
from otel_mlperf.sensors.measurement import Level, Measurement, includes

if TYPE_CHECKING:
    from pathlib import Path

_STALL: Final = re.compile(
    rb"^(some|full) avg10=(\d{1,3}\.\d\d) avg60=\S{1,9} avg300=\S{1,9} total=(\d{1,20})$",
    re.MULTILINE,
)
_RESOURCES: Final = ("cpu", "memory", "io")
_UNDEFINED: Final = ("cpu", "full")
"""The kernel writes zeros there for compatibility: a whole host never waits for its CPUs."""


class Stall(NamedTuple):
    """Line of a file in ``/proc/pressure``."""

    average_ratio: float
    """Average of the last ten seconds."""
    total_s: float


def parse_pressure(text: bytes) -> dict[str, Stall]:
    """Return ``some`` and ``full``; missing lines are absent."""
    return {
        kind.decode(): Stall(float(average) / 100, int(total) / 1e6)
        for kind, average, total in _STALL.findall(text)
    }


class PressureSensor:
    """Sensor of stalls of CPUs, memory and disks; from level ``detailed`` upward also of paging."""

    def __init__(self, level: Level, proc: Path) -> None:
        self._stalls = {
            resource: KeptFile(proc / "pressure" / resource, may_lack=False)
            for resource in _RESOURCES
        }
        is_detailed = includes(level, "detailed")
        self._vmstat = KeptFile(proc / "vmstat", may_lack=False) if is_detailed else None

    def read(self) -> list[Measurement]:
        """Return the time in which something waited, its share of ten seconds, and page faults."""
        measured: list[Measurement] = []
        for resource, file in self._stalls.items():
            for kind, stall in parse_pressure(file.read()).items():
                if (resource, kind) != _UNDEFINED:
                    labels = {names.PSI_RESOURCE: resource, names.PSI_KIND: kind}
                    measured += [
                        Measurement(names.PSI_TIME.name, labels, stall.total_s),
                        Measurement(names.PSI_AVERAGE.name, labels, stall.average_ratio),
                    ]
        return measured + (_paging(self._vmstat.read()) if self._vmstat else [])

    def close(self) -> None:
        """Close all files."""
        for file in (*self._stalls.values(), self._vmstat):
            if file is not None:
                file.close()


def _paging(text: bytes) -> list[Measurement]:
    faults, major = field(text, b"pgfault "), field(text, b"pgmajfault ")
    # pgfault counts the major ones too.
    minor = None if faults is None or major is None else max(0, faults - major)
    counts = (
        (names.PAGING_FAULTS, names.PAGING_FAULT, "minor", minor),
        (names.PAGING_FAULTS, names.PAGING_FAULT, "major", major),
        (names.PAGING_OPERATIONS, names.PAGING_DIRECTION, "in", field(text, b"pswpin ")),
        (names.PAGING_OPERATIONS, names.PAGING_DIRECTION, "out", field(text, b"pswpout ")),
    )
    return [
        Measurement(metric.name, {label: kind}, count)
        for metric, label, kind, count in counts
        if count is not None
    ]
