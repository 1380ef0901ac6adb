"""Sensor of this node's training processes and of their children, by role."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from psutil import LINUX

from otel_mlperf import names
from otel_mlperf.sensors.cgroup import CgroupSensor
from otel_mlperf.sensors.kernel_files import PROC, SYS, has_proc
from otel_mlperf.sensors.measurement import Measurement
from otel_mlperf.sensors.processes.children import ChildFinder, EndedChildren
from otel_mlperf.sensors.processes.process_usage import Figures, ProcessFiles
from otel_mlperf.sensors.processes.psutil_process import PsutilChildFinder, PsutilProcess
from otel_mlperf.sensors.psutil_calls import read_psutil
from otel_mlperf.sensors.psutil_calls import uptime_s as host_uptime_s

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from otel_mlperf.names import Metric
    from otel_mlperf.sensors.measurement import Level
    from otel_mlperf.sensors.processes.process_usage import Scheduled, Stat

MAIN: Final = "main"
_ENDED: Final = "ended"
_LABELS: Final = {
    names.PROCESS_CPU_TIME: names.CPU_MODE,
    names.PROCESS_DISK_IO: names.DISK_DIRECTION,
    names.PROCESS_CONTEXT_SWITCHES: names.CONTEXT_SWITCH,
    names.PROCESS_FAULTS: names.PAGING_FAULT,
}
_SETTLED_S: Final = 1.0
"""Minimum age of a child, so that it has executed its own program after the fork."""


class Circumstances(NamedTuple):
    """Time of a reading, and resources of the machine; a resource that is not known is None."""

    clock_s: float
    uptime_s: float
    host_bytes: int | None = None
    cpus: float | None = None
    """Number of CPUs that the process may use."""


class _Member:
    def __init__(self, reader: ProcessFiles | PsutilProcess, role: str) -> None:
        self._reader, self.role = reader, role
        self.figures: Figures = {}
        self.stat: Stat | None = None
        self.worked_s: float | None = None
        """CPU time between the last two readings; None if there was only one reading."""

    def read(self) -> Stat | None:
        stat, before = self._reader.stat(), self.stat
        if stat is None:
            return None
        self.figures, self.stat = self._reader.figures(stat), stat
        self.worked_s = before and stat.user_s + stat.system_s - before.user_s - before.system_s
        return stat

    def loop_thread(self) -> Scheduled | None:
        return self._reader.loop_thread()

    def write_calls(self) -> int | None:
        return self._reader.write_calls()

    def close(self) -> None:
        self._reader.close()


class Family:
    """Reader of a training process and its descendants."""

    def __init__(self, pid: int, level: Level, proc: Path, loop_thread: int | None = None) -> None:
        self._pid, self._level, self._proc = pid, level, proc
        self._main = _Member(self._open(pid, loop_thread), MAIN)
        finder = ChildFinder if has_proc(proc) else PsutilChildFinder
        self._finder = finder(pid, proc)
        self._children: dict[int, _Member] = {}
        self._base: dict[str, Figures] = {}
        """Sums of the counters of ended children, by role; values of other metrics are zero."""
        self._ended = EndedChildren()
        self._read_s: float | None = None

    def _open(self, pid: int, loop_thread: int | None = None) -> ProcessFiles | PsutilProcess:
        if has_proc(self._proc):
            return ProcessFiles(pid, self._level, self._proc, loop_thread)
        return PsutilProcess(pid, self._level)

    def read(self, now: Circumstances, never: Collection[int]) -> list[Measurement]:
        """Return measurements of the process, and of its children by role; [] if it has ended.

        Processes in ``never`` do not count as children.
        """
        stat = self._main.read()
        if stat is None:
            return []
        self._look_for_children(now, never)
        elapsed_s = None if self._read_s is None else now.clock_s - self._read_s
        self._read_s = now.clock_s
        measured = self._measured(MAIN, [self._main], self._main.figures, now, elapsed_s)
        for role, base in self._base.items():
            members = [child for child in self._children.values() if child.role == role]
            figures = dict(base)
            for child in members:
                for key, value in child.figures.items():
                    figures[key] = figures.get(key, 0.0) + value
            figures[names.PROCESS_COUNT, ""] = len(members)
            measured += self._measured(role, members, figures, now, elapsed_s)
        measured += self._of_main_process() + self._of_ended_children()
        age_s = max(0.0, now.uptime_s - stat.start_s)
        measured.append(Measurement(names.PROCESS_UPTIME.name, {}, age_s, self._pid))
        return measured

    def _of_main_process(self) -> list[Measurement]:
        scheduled, write_calls = self._main.loop_thread(), self._main.write_calls()
        values = {
            names.MAIN_THREAD_CPU_TIME: scheduled and scheduled.cpu_s,
            names.MAIN_THREAD_RUN_DELAY: scheduled and scheduled.run_delay_s,
            names.PROCESS_WRITE_CALLS: write_calls,
        }
        return [
            Measurement(metric.name, {}, value, self._pid)
            for metric, value in values.items()
            if value is not None
        ]

    def _of_ended_children(self) -> list[Measurement]:
        if not LINUX:
            return []  # only Linux counts the use of waited-for children
        members = (self._main, *self._children.values())
        user_s, system_s = self._ended.unread(
            member.stat for member in members if member.stat is not None
        )
        cpu_time = names.PROCESS_CPU_TIME
        return [
            self._of(_ENDED, cpu_time, "user", user_s),
            self._of(_ENDED, cpu_time, "system", system_s),
        ]

    def _look_for_children(self, now: Circumstances, never: Collection[int]) -> None:
        for pid in self._finder.find(self._children, never):
            self._adopt(pid, now)
        for pid, child in list(self._children.items()):
            base = self._base[child.role]
            has_ended = child.read() is None
            # The last values of an ended child: counters stay in the sum, which must not decrease.
            for (metric, label), value in child.figures.items():
                base.setdefault((metric, label), 0.0)
                if has_ended and metric.instrument == "counter":
                    base[metric, label] += value
            if has_ended:
                self._children.pop(pid).close()
                if child.stat is not None:
                    self._ended.leave_out(child.stat.user_s, child.stat.system_s)

    def _adopt(self, pid: int, now: Circumstances) -> None:
        reader = self._open(pid)
        stat = reader.stat()
        # Before exec, a child has its parent's command line, which would result in a wrong role.
        if stat is None or now.uptime_s - stat.start_s < _SETTLED_S:
            reader.close()
            return
        role = self._finder.role(pid, stat)
        self._base.setdefault(role, {})
        self._children[pid] = _Member(reader, role)

    def _measured(
        self,
        role: str,
        members: list[_Member],
        figures: Figures,
        now: Circumstances,
        elapsed_s: float | None,
    ) -> list[Measurement]:
        measured = [self._of(role, *key, value) for key, value in figures.items()]
        resident = figures.get((names.PROCESS_MEMORY, ""))
        if resident is not None and now.host_bytes:
            share = resident / now.host_bytes
            measured.append(self._of(role, names.PROCESS_MEMORY_UTILIZATION, "", share))
        worked = [member.worked_s for member in members if member.worked_s is not None]
        # If all children are new since the previous reading, the share is unknown, not zero.
        if elapsed_s and now.cpus and (worked or not members):
            share = max(0.0, sum(worked) / elapsed_s / now.cpus)
            measured.append(self._of(role, names.PROCESS_CPU_UTILIZATION, "", share))
        return measured

    def _of(self, role: str, metric: Metric, label: str, value: float) -> Measurement:
        labels = {_LABELS[metric]: label} if label else {}
        return Measurement(metric.name, {**labels, names.PROCESS_ROLE: role}, value, self._pid)

    def leave_out(self, other: Family) -> None:
        """Do not count the CPU time of ``other`` again, if that process was a child of this one."""
        stat = other.last_stat()
        if stat is not None and stat.parent in (self._pid, *self._children):
            self._ended.leave_out(
                stat.user_s + stat.waited_user_s, stat.system_s + stat.waited_system_s
            )

    def last_stat(self) -> Stat | None:
        """Return the ended process's last statistics; None if it is running or was never read."""
        return self._main.stat if self._main.read() is None else None

    def close(self) -> None:
        """Close all files of the process and its children."""
        self._finder.close()
        for member in (self._main, *self._children.values()):
            member.close()


class ProcessSensor:
    """Sensor of training processes, their children, and their control groups."""

    def __init__(
        self,
        level: Level = "detailed",
        *,
        pids: Callable[[], Collection[int]] | None = None,
        loop_threads: Callable[[], Mapping[int, int]] = dict,
        proc: Path = PROC,
        sys: Path = SYS,
        clock: Callable[[], float] = time.monotonic,
        uptime_s: Callable[[], float] = host_uptime_s,
    ) -> None:
        """Create the sensor. ``pids`` returns the ids to read (None: those passed to ``follow``).

        ``loop_threads`` returns the thread of each process's training loop, by process id. For a
        process without an entry, the process's first thread is assumed.
        """
        self._level, self._proc, self._clock, self._pids = level, proc, clock, pids
        self._loop_threads = loop_threads
        self._cgroups = CgroupSensor(level, proc, sys)
        self._uptime_s = uptime_s
        memory = read_psutil("virtual_memory")
        self._host_bytes: int | None = memory and memory.total
        # Without /proc there are no control groups, so that processes may use all CPUs.
        self._cpus = None if has_proc(proc) else read_psutil("cpu_count")
        self._families: dict[int, Family] = {}
        self._never: set[int] = set()

    def follow(self, pids: Collection[int]) -> None:
        """Observe exactly the training processes ``pids``; stop observing all other processes.

        Observed processes and the reading process itself do not count as children of other observed
        processes.
        """
        self._cgroups.follow(pids)
        for pid in [pid for pid in self._families if pid not in pids]:
            ended = self._families.pop(pid)
            for family in self._families.values():
                family.leave_out(ended)
            ended.close()
        for pid in pids:
            if pid not in self._families:
                thread = self._loop_threads().get(pid)
                self._families[pid] = Family(pid, self._level, self._proc, thread)
        self._never = {*pids, os.getpid()}

    def read(self) -> list[Measurement]:
        """Return measurements of all observed processes, each with the training process's id."""
        if self._pids is not None:
            self.follow(self._pids())
        measured = self._cgroups.read()
        uptime_s = self._uptime_s()
        for pid, family in self._families.items():
            cpus = self._cgroups.cpus.get(pid, self._cpus)
            now = Circumstances(self._clock(), uptime_s, self._host_bytes, cpus)
            measured += family.read(now, self._never)
        return measured

    def close(self) -> None:
        """Close all files of processes and control groups."""
        self._cgroups.close()
        for family in self._families.values():
            family.close()
