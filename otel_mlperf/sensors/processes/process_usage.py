"""Resource use of one process, read from ``/proc``.

psutil is not used, because it reads three files for values that are in one line of ``stat`` (times,
threads, start), and does not report faults, run delay or context switches of all threads.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import (
    TICKS_A_SECOND,
    KeptFile,
    entries,
    field,
    kibibytes,
    numbers,
    read_once,
)
from otel_mlperf.sensors.measurement import Level, includes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_mlperf.names import Metric

PAGE_BYTES: Final = mmap.PAGESIZE
_MIN_FIELDS: Final = 22
_SCHEDSTAT_FIELDS: Final = 3
_WANTED: Final = (1, 7, 9, 11, 12, 13, 14, 17, 19)
"""Indices of the numeric fields of ``Stat`` among the words after the command."""


class Stat(NamedTuple):
    """Statistics of one process, summed over its threads."""

    command: bytes
    """Name of the process, at most 15 bytes."""
    parent: int
    user_s: float
    system_s: float
    waited_user_s: float
    """CPU time of children that ended and were waited for, and of their descendants."""
    waited_system_s: float
    threads: int
    start_s: float
    """Start of the process, in seconds since the start of the host."""
    minor_faults: int = 0
    """Page faults without disk access; reported on Linux only."""
    major_faults: int = 0


def parse_stat(text: bytes) -> Stat | None:
    """Parse ``/proc/<pid>/stat``; return None for any other text.

    The command may contain blanks and brackets.
    """
    first, last = text.find(b"("), text.rfind(b")")
    words = text[last + 1 :].split()
    if not 0 <= first < last or len(words) < _MIN_FIELDS:
        return None
    fields = numbers([words[place] for place in _WANTED])
    if not fields:
        return None
    parent, minor, major, *ticks, threads, start = fields
    user_s, system_s, waited_user_s, waited_system_s = (count / TICKS_A_SECOND for count in ticks)
    return Stat(
        text[first + 1 : last],
        parent,
        user_s,
        system_s,
        waited_user_s,
        waited_system_s,
        threads,
        start / TICKS_A_SECOND,
        minor,
        major,
    )


def parse_statm(text: bytes) -> list[int]:
    """Return virtual and resident bytes from ``/proc/<pid>/statm``; empty for any other text.

    Resident memory in ``stat`` is less accurate: since Linux 6.16 it does not include per-CPU
    counters, which may be up to 100 MiB on machines with many CPUs.
    """
    pages = numbers(text.split()[:2])
    return [count * PAGE_BYTES for count in pages] if len(pages) == 2 else []


def parse_switches(text: bytes) -> tuple[int, int] | None:
    """Return a thread's voluntary and involuntary context switches; None if they are missing.

    ``text`` is the content of ``/proc/<pid>/task/<tid>/status``.
    """
    voluntary = field(text, b"voluntary_ctxt_switches:")
    involuntary = field(text, b"nonvoluntary_ctxt_switches:")
    if voluntary is None or involuntary is None:
        return None
    return voluntary, involuntary


class Scheduled(NamedTuple):
    """CPU time and run delay of one thread since its start, or the sums over all threads."""

    cpu_s: float
    run_delay_s: float
    """Time in which the thread was ready to run but waited for a CPU."""


def parse_scheduled(text: bytes) -> Scheduled | None:
    """Parse ``/proc/<pid>/task/<tid>/schedstat``; None if the kernel does not record the times."""
    fields = numbers(text.split())
    if len(fields) != _SCHEDSTAT_FIELDS or not fields[0]:
        return None  # a kernel without CONFIG_SCHED_INFO writes zeros
    return Scheduled(fields[0] / 1e9, fields[1] / 1e9)


Counts = tuple[float, ...]


class ThreadSums:
    """Sums of per-thread kernel counters over all threads of a process."""

    def __init__(self, process: Path, file: str, parse: Callable[[bytes], Counts | None]) -> None:
        self._tasks, self._file, self._parse = str(process / "task"), file, parse
        self._threads: dict[str, Counts] = {}
        self._ended: list[Counts] = []
        """The sum over ended threads as the only element; empty before the first thread ends."""

    def read(self) -> Counts | None:
        """Return the sums, which never decrease; None if no thread can be read.

        Ended threads are included with their last values. Threads that start and end between two
        readings are missing, because no file contains sums over ended threads.
        """
        threads: dict[str, Counts] = {}
        for thread in entries(self._tasks):
            counts = self._parse(read_once(f"{self._tasks}/{thread}/{self._file}"))
            if counts is not None:
                threads[thread] = counts
        ended = [last for thread, last in self._threads.items() if thread not in threads]
        if ended:
            self._ended = [_sum([*self._ended, *ended])]
        self._threads = threads
        return _sum([*self._ended, *threads.values()]) if threads else None


def _sum(counts: list[Counts]) -> Counts:
    return tuple(map(sum, zip(*counts, strict=True)))


Figures = dict[tuple["Metric", str], float]
"""Values by metric and by the label that distinguishes the metric's points, e.g. the CPU mode."""


def figures_of(stat: Stat) -> Figures:
    """Return the resource use in ``stat`` that is read at all levels."""
    return {
        (names.PROCESS_CPU_TIME, "user"): stat.user_s,
        (names.PROCESS_CPU_TIME, "system"): stat.system_s,
        (names.PROCESS_THREADS, ""): stat.threads,
    }


_PSS_EVERY: Final = 12
"""Number of readings between updates of the PSS, for which the kernel walks all pages."""


def read_pss_bytes(process: Path) -> int | None:
    """Return the PSS (proportional set size) of the process in this folder; None if unreadable."""
    return kibibytes(read_once(process / "smaps_rollup"), b"Pss:")


class ProcessFiles:
    """Reader of one process's files in ``/proc``, which stay open."""

    def __init__(self, pid: int, level: Level, proc: Path, loop_thread: int | None = None) -> None:
        self._folder, self._level = proc / str(pid), level
        self._stat = KeptFile(self._folder / "stat")
        self._statm = KeptFile(self._folder / "statm")
        self._io = KeptFile(self._folder / "io")
        self._switches = ThreadSums(self._folder, "status", parse_switches)
        self._scheduled = KeptFile(self._folder / "task" / str(loop_thread or pid) / "schedstat")
        self._threads = ThreadSums(self._folder, "schedstat", parse_scheduled)
        self._readings = 0
        self._pss: int | None = None

    def stat(self) -> Stat | None:
        """Return the process's statistics; None if the process has ended."""
        return parse_stat(self._stat.read())

    def figures(self, stat: Stat) -> Figures:
        """Return the resource use that the level includes; ``stat`` is the result of ``stat()``."""
        figures = figures_of(stat)
        memory = parse_statm(self._statm.read())
        if memory:
            figures[names.PROCESS_MEMORY, ""] = memory[1]
        scheduled = self._threads.read()
        if scheduled is not None:
            figures[names.PROCESS_RUN_DELAY, ""] = Scheduled(*scheduled).run_delay_s
        if includes(self._level, "detailed"):
            if memory:
                figures[names.PROCESS_MEMORY_VIRTUAL, ""] = memory[0]
            figures[names.PROCESS_FAULTS, "minor"] = stat.minor_faults
            figures[names.PROCESS_FAULTS, "major"] = stat.major_faults
            figures |= self._seldom_wanted()
        if includes(self._level, "comprehensive"):
            if self._readings % _PSS_EVERY == 0:
                self._pss = read_pss_bytes(self._folder)
            if self._pss is not None:
                figures[names.PROCESS_MEMORY_PSS, ""] = self._pss
        self._readings += 1
        return figures

    def loop_thread(self) -> Scheduled | None:
        """Return the times of the training loop's thread; None if the kernel records no times."""
        return parse_scheduled(self._scheduled.read())

    def write_calls(self) -> int | None:
        """Return the process's number of write system calls; None if it cannot be read."""
        return field(self._io.read(), b"syscw:")

    def _seldom_wanted(self) -> Figures:
        io, switches = self._io.read(), self._switches.read()
        values: dict[tuple[Metric, str], float | None] = {
            (names.PROCESS_DISK_IO, "read"): field(io, b"read_bytes:"),
            (names.PROCESS_DISK_IO, "write"): field(io, b"write_bytes:"),
            (names.PROCESS_FILES, ""): _open_files(self._folder / "fd"),
        }
        if switches is not None:
            for kind, count in zip(("voluntary", "involuntary"), switches, strict=True):
                values[names.PROCESS_CONTEXT_SWITCHES, kind] = count
        return {key: value for key, value in values.items() if value is not None}

    def close(self) -> None:
        """Close all files."""
        self._stat.close()
        self._statm.close()
        self._io.close()
        self._scheduled.close()


def _open_files(folder: Path) -> int | None:
    # Since Linux 6.2 the size of the folder is the number of open files.
    try:
        return os.stat(folder).st_size or len(os.listdir(folder))
    except OSError:
        return None
