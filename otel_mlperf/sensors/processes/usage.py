"""What does one process use?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import KeptFile, field, kibibytes, read_once
from otel_mlperf.sensors.levels import Level, includes
from otel_mlperf.sensors.processes.context_switches import SwitchCounter
from otel_mlperf.sensors.processes.proc_stat import Stat, parse_stat

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.names import Metric

Figures = dict[tuple["Metric", str], float]
"""Values by metric and what tells its points apart (the mode, the direction, …)."""

_PSS_EVERY: Final = 12
"""Readings between two of the proportional set size, for which the kernel walks all pages."""


def read_pss_bytes(process: Path) -> int | None:
    """Proportional set size of a process, given its folder in ``/proc``; None: not allowed."""
    return kibibytes(read_once(process / "smaps_rollup"), b"Pss:")


class ProcessReader:
    """One process, for as long as it is there."""

    def __init__(self, pid: int, level: Level, proc: Path) -> None:
        self._folder, self._level = proc / str(pid), level
        self._stat = KeptFile(self._folder / "stat")
        self._io = KeptFile(self._folder / "io")
        self._switches = SwitchCounter(self._folder)
        self._readings = 0
        self._pss: int | None = None

    def stat(self) -> Stat | None:
        """None once the process is gone."""
        return parse_stat(self._stat.read())

    def figures(self, stat: Stat) -> Figures:
        """What it uses, as the level says; what the process does not let others see is absent."""
        found: Figures = {
            (names.PROCESS_CPU_TIME, "user"): stat.user_s,
            (names.PROCESS_CPU_TIME, "system"): stat.system_s,
            (names.PROCESS_MEMORY, ""): stat.resident_bytes,
            (names.PROCESS_THREADS, ""): stat.threads,
        }
        if includes(self._level, "detailed"):
            found[names.PROCESS_MEMORY_VIRTUAL, ""] = stat.virtual_bytes
            found[names.PROCESS_FAULTS, "minor"] = stat.minor_faults
            found[names.PROCESS_FAULTS, "major"] = stat.major_faults
            found |= self._seldom_wanted()
        if includes(self._level, "comprehensive"):
            if self._readings % _PSS_EVERY == 0:
                self._pss = read_pss_bytes(self._folder)
            if self._pss is not None:
                found[names.PROCESS_MEMORY_PSS, ""] = self._pss
        self._readings += 1
        return found

    def _seldom_wanted(self) -> Figures:
        io, switches = self._io.read(), self._switches.read()
        values: dict[tuple[Metric, str], float | None] = {
            (names.PROCESS_DISK_IO, "read"): field(io, b"read_bytes:"),
            (names.PROCESS_DISK_IO, "write"): field(io, b"write_bytes:"),
            (names.PROCESS_FILES, ""): _open_files(self._folder / "fd"),
        }
        if switches is not None:
            values[names.PROCESS_CONTEXT_SWITCHES, "voluntary"] = switches.voluntary
            values[names.PROCESS_CONTEXT_SWITCHES, "involuntary"] = switches.involuntary
        return {key: value for key, value in values.items() if value is not None}

    def close(self) -> None:
        """Closes its files."""
        self._stat.close()
        self._io.close()


def _open_files(folder: Path) -> int | None:
    # Newer kernels (6.2) say the number as the size of the folder.
    try:
        return os.stat(folder).st_size or len(os.listdir(folder))
    except OSError:
        return None
