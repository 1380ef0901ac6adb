"""Processes where there is no ``/proc``, from psutil.

On Linux own code reads them: one line of ``stat`` has times, threads, start and faults for a third
of what psutil takes, and finding children by psutil looks at all processes of the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Level, includes
from otel_mlperf.sensors.processes.children import ChildFinder
from otel_mlperf.sensors.processes.usage import Figures, Stat, figures_of

if TYPE_CHECKING:
    from collections.abc import Collection


class PsutilProcess:
    """One process, as ``ProcessFiles``.

    Faults, run delay, context switches, proportional set size, the loop's thread and calls to write
    are absent.
    """

    def __init__(self, pid: int, level: Level) -> None:
        self._pid, self._is_detailed = pid, includes(level, "detailed")
        self._process: psutil.Process | None = None

    def stat(self) -> Stat | None:
        """Return None once the process is gone, or where it cannot be read."""
        try:
            if self._process is None:
                self._process = psutil.Process(self._pid)
            # Another process may have got its number since.
            return _read_stat(self._process) if self._process.is_running() else None
        except psutil.Error:
            return None

    def figures(self, stat: Stat) -> Figures:
        """Return what the process uses, as the level says."""
        figures, process = figures_of(stat), self._process
        if process is None:
            return figures
        try:
            memory = process.memory_info()
            figures[names.PROCESS_MEMORY, ""] = memory.rss
            if self._is_detailed:
                figures[names.PROCESS_MEMORY_VIRTUAL, ""] = memory.vms
                figures[names.PROCESS_FILES, ""] = process.num_fds()
                if hasattr(process, "io_counters"):  # not on macOS
                    io = process.io_counters()
                    figures[names.PROCESS_DISK_IO, "read"] = io.read_bytes
                    figures[names.PROCESS_DISK_IO, "write"] = io.write_bytes
        except psutil.Error:
            pass  # another user's process shows less
        return figures

    def loop_thread(self) -> None:
        """Return None: not known."""

    def write_calls(self) -> None:
        """Return None: not known."""

    def close(self) -> None:
        """Nothing is open."""


def _read_stat(process: psutil.Process) -> Stat:
    with process.oneshot():
        times = process.cpu_times()
        return Stat(
            command=process.name().encode(),
            parent=process.ppid(),
            user_s=times.user,
            system_s=times.system,
            waited_user_s=times.children_user,
            waited_system_s=times.children_system,
            threads=process.num_threads(),
            start_s=process.create_time() - psutil.boot_time(),
        )


class PsutilChildFinder(ChildFinder):
    """Finds descendants of one process among all processes of the system."""

    def find(self, known: Collection[int], never: Collection[int]) -> set[int]:
        """Return descendants that are not ``known`` yet, without those below one of ``never``."""
        family = {self._pid}
        try:
            # Parents come before their children.
            for child in psutil.Process(self._pid).children(recursive=True):
                if child.pid not in never and child.ppid() in family:
                    family.add(child.pid)
        except psutil.Error:
            pass  # one that has just ended: the rest is found at the next look
        return family - {self._pid, *known}

    def _command(self, pid: int) -> bytes:
        try:
            return "\0".join(psutil.Process(pid).cmdline()).encode("utf-8", "surrogateescape")
        except psutil.Error:
            return b""
