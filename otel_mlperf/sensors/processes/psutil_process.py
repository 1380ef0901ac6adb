"""Readers of processes based on psutil, for systems without ``/proc``.

Faults, run delay, context switches, proportional set size, the CPU time of the loop's thread and
write calls are not available. On Linux, ``process_usage`` and ``children`` are used instead.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Level, includes
from otel_mlperf.sensors.processes.children import ChildFinder
from otel_mlperf.sensors.processes.process_usage import Figures, Stat, figures_of

if TYPE_CHECKING:
    from collections.abc import Collection


class PsutilProcess:
    """Reader of one process, with the interface of ``ProcessFiles``."""

    def __init__(self, pid: int, level: Level) -> None:
        self._pid, self._is_detailed = pid, includes(level, "detailed")
        self._process: Any = None

    def stat(self) -> Stat | None:
        """Return the process's statistics; None if the process has ended."""
        with suppress(psutil.Error):
            self._process = self._process or psutil.Process(self._pid)
            # is_running() also detects that the process id was reused by another process.
            return _read_stat(self._process) if self._process.is_running() else None
        return None

    def figures(self, stat: Stat) -> Figures:
        """Return the resource use that the level includes; ``stat`` is the result of ``stat()``."""
        figures, process = figures_of(stat), self._process
        with suppress(psutil.Error):
            memory = process.memory_info()
            figures[names.PROCESS_MEMORY, ""] = memory.rss
            if self._is_detailed:
                figures[names.PROCESS_MEMORY_VIRTUAL, ""] = memory.vms
                figures[names.PROCESS_FILES, ""] = process.num_fds()
                if hasattr(process, "io_counters"):  # not on macOS
                    io = process.io_counters()
                    figures[names.PROCESS_DISK_IO, "read"] = io.read_bytes
                    figures[names.PROCESS_DISK_IO, "write"] = io.write_bytes
        return figures

    def loop_thread(self) -> None:
        """Return None, because CPU time and run delay of threads are not available."""

    def write_calls(self) -> None:
        """Return None, because the number of write system calls is not available."""

    def close(self) -> None:
        """Do nothing, because no resource is open."""


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
    """Finder of a process's descendants that scans all processes of the system."""

    def find(self, known: Collection[int], never: Collection[int]) -> set[int]:
        """Return ids of descendants, without ``known``, ``never`` and descendants of ``never``."""
        family = {self._pid}
        # A child that has just ended aborts the search; the next search finds the other children.
        with suppress(psutil.Error):
            # psutil lists parents before their children.
            for child in psutil.Process(self._pid).children(recursive=True):
                if child.pid not in never and child.ppid() in family:
                    family.add(child.pid)
        return family - {self._pid, *known}

    def _command(self, pid: int) -> bytes:
        with suppress(psutil.Error):
            return "\0".join(psutil.Process(pid).cmdline()).encode("utf-8", "surrogateescape")
        return b""
