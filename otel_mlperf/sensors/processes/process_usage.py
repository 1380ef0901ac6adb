"""Usage of one process, from ``/proc``.

This is own code. psutil reads three files where one line has times, threads, start and faults. It
reports neither faults, run delay nor context switches of all threads.
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
_LEAST_FIELDS: Final = 22
_SCHEDSTAT_FIELDS: Final = 3
_WANTED: Final = (1, 7, 9, 11, 12, 13, 14, 17, 19)
"""Indices of the fields below, starting with ``parent``, behind the command."""


class Stat(NamedTuple):
    """Statistics of one process, all of its threads together."""

    command: bytes
    """At most its first 15 bytes."""
    parent: int
    user_s: float
    system_s: float
    waited_user_s: float
    """CPU time of children that ended and were waited for, and of their descendants."""
    waited_system_s: float
    threads: int
    start_s: float
    """Seconds after the start of the host."""
    minor_faults: int = 0
    """Reported on Linux only."""
    major_faults: int = 0


def parse_stat(text: bytes) -> Stat | None:
    """Parse ``/proc/<pid>/stat``; None for other text.

    A command may contain blanks and brackets.
    """
    first, last = text.find(b"("), text.rfind(b")")
    words = text[last + 1 :].split()
    if not 0 <= first < last or len(words) < _LEAST_FIELDS:
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
    """Return virtual and resident bytes of ``/proc/<pid>/statm``; empty for any other text.

    Resident memory in ``stat`` is less exact: since Linux 6.16 it lacks the counts that each CPU
    keeps, up to 100 MiB on machines with many CPUs.
    """
    pages = numbers(text.split()[:2])
    return [count * PAGE_BYTES for count in pages] if len(pages) == 2 else []


def parse_switches(text: bytes) -> tuple[int, int] | None:
    """Return how often a thread waited, and how often it was preempted.

    Parses ``/proc/<pid>/task/<tid>/status``; None if it lacks the counts.
    """
    voluntary = field(text, b"voluntary_ctxt_switches:")
    involuntary = field(text, b"nonvoluntary_ctxt_switches:")
    if voluntary is None or involuntary is None:
        return None
    return voluntary, involuntary


class Scheduled(NamedTuple):
    """CPU time and run delay of a thread, or of all, so far."""

    cpu_s: float
    run_delay_s: float
    """Time ready to run, without a CPU."""


def parse_scheduled(text: bytes) -> Scheduled | None:
    """Parse a ``schedstat`` of ``/proc``; None if the kernel keeps none."""
    fields = numbers(text.split())
    if len(fields) != _SCHEDSTAT_FIELDS or not fields[0]:
        return None  # a kernel without CONFIG_SCHED_INFO writes zeros
    return Scheduled(fields[0] / 1e9, fields[1] / 1e9)


Counts = tuple[float, ...]


class ThreadSums:
    """Sums over all threads of a process of counters that the kernel keeps per thread."""

    def __init__(self, process: Path, file: str, parse: Callable[[bytes], Counts | None]) -> None:
        self._tasks, self._file, self._parse = str(process / "task"), file, parse
        self._threads: dict[str, Counts] = {}
        self._ended: list[Counts] = []
        """Sum over ended threads, once there is one."""

    def read(self) -> Counts | None:
        """Return the sums, never less than before: ended threads count with their last values.

        A thread that started and ended between two readings is missed: no file has a sum of them.
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
"""Values by metric and by the label that distinguishes its points (the mode, the direction, …)."""


def figures_of(stat: Stat) -> Figures:
    """Return the figures of ``stat`` at every level."""
    return {
        (names.PROCESS_CPU_TIME, "user"): stat.user_s,
        (names.PROCESS_CPU_TIME, "system"): stat.system_s,
        (names.PROCESS_THREADS, ""): stat.threads,
    }


_PSS_EVERY: Final = 12
"""Number of readings between two of the proportional set size, for which the kernel walks all
pages."""


def read_pss_bytes(process: Path) -> int | None:
    """Return the proportional set size of a process's folder in ``/proc``; None: not allowed."""
    return kibibytes(read_once(process / "smaps_rollup"), b"Pss:")


class ProcessFiles:
    """Files of one process, for as long as it exists."""

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
        """Return the process's statistics; None once it is gone."""
        return parse_stat(self._stat.read())

    def figures(self, stat: Stat) -> Figures:
        """Return its use at the level; what the process hides is absent."""
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
        """Return CPU time and run delay of its loop's thread; None if the kernel lacks them."""
        return parse_scheduled(self._scheduled.read())

    def write_calls(self) -> int | None:
        """Return its number of system calls to write; None if that is not counted."""
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
        """Close its files."""
        self._stat.close()
        self._statm.close()
        self._io.close()
        self._scheduled.close()


def _open_files(folder: Path) -> int | None:
    # Newer kernels (6.2) report the number as the size of the folder.
    try:
        return os.stat(folder).st_size or len(os.listdir(folder))
    except OSError:
        return None
