"""Sensor of control groups: limits and use of each training process's container or job.

psutil does not read control groups. A process's limit is the minimum of the machine's resources and
of the limits of its group and of all parent groups, because the process's own group is usually
unlimited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.sensors.cgroup_files import (
    CpuGroup,
    CpuReading,
    Membership,
    MemoryGroup,
    MemoryReading,
    parse_cpu_list,
)
from otel_mlperf.sensors.kernel_files import KeptFile, kibibytes, read_once, word
from otel_mlperf.sensors.measurement import Level, Measurement, includes

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from otel_mlperf.names import Metric
    from otel_mlperf.sensors.cgroup_files import Chain


class CgroupSensor:
    """Sensor of the control groups of training processes.

    A group to which several processes belong is read once per pass.
    """

    def __init__(self, level: Level, proc: Path, sys: Path) -> None:
        self._is_detailed = includes(level, "detailed")
        self._proc, self._sys = proc, sys
        self._host_bytes = kibibytes(read_once(proc / "meminfo"), b"MemTotal:")
        self._members: dict[int, tuple[Membership, KeptFile]] = {}
        self._cpu: dict[Chain, CpuGroup] = {}
        self._memory: dict[Chain, MemoryGroup] = {}
        self.cpus: dict[int, float] = {}
        """Number of CPUs that each process may use, by process id, from the latest reading."""

    def follow(self, pids: Collection[int]) -> None:
        """Observe exactly the processes ``pids``; stop observing all other processes."""
        for pid in [pid for pid in self._members if pid not in pids]:
            for file in self._members.pop(pid):
                file.close()
            self.cpus.pop(pid, None)
        for pid in pids:
            if pid not in self._members:
                status = KeptFile(self._proc / str(pid) / "status")
                self._members[pid] = Membership(pid, self._proc, self._sys), status

    def read(self) -> list[Measurement]:
        """Return limits, use, throttling, OOM kills; at level ``detailed`` also peak memory."""
        self._look_for_groups()
        cpu = {chain: group.read() for chain, group in self._cpu.items()}
        memory = {chain: group.read() for chain, group in self._memory.items()}
        measured: list[Measurement] = []
        for pid, (member, status) in self._members.items():
            text = status.read()
            # An ended process has no status, but its groups still exist, so that it is skipped.
            if text:
                of_cpu, of_memory = member.chain("cpu"), member.chain("memory")
                measured += self._of_cpu(pid, text, cpu[of_cpu] if of_cpu else CpuReading())
                measured += self._of_memory(
                    pid, memory[of_memory] if of_memory else MemoryReading()
                )
        return measured

    def _look_for_groups(self) -> None:
        unused = {*self._cpu, *self._memory}
        for member, _ in self._members.values():
            member.read()
            of_cpu, of_memory = member.chain("cpu"), member.chain("memory")
            if of_cpu and of_cpu not in self._cpu:
                self._cpu[of_cpu] = CpuGroup(of_cpu, member.chain("cpuacct"))
            if of_memory and of_memory not in self._memory:
                self._memory[of_memory] = MemoryGroup(of_memory)
            unused -= {of_cpu, of_memory}
        for chain in unused:
            if chain in self._cpu:
                self._cpu.pop(chain).close()
            if chain in self._memory:
                self._memory.pop(chain).close()

    def _of_cpu(self, pid: int, status: bytes, group: CpuReading) -> list[Measurement]:
        allowed = len(parse_cpu_list(word(status, b"Cpus_allowed_list:")))
        limits = [limit for limit in (allowed, group.limit_cpus) if limit]
        self.cpus.pop(pid, None)
        if limits:
            self.cpus[pid] = min(limits)
        return _measured(
            pid,
            {
                names.CGROUP_CPU_LIMIT: self.cpus.get(pid),
                names.CGROUP_CPU_TIME: group.cpu_s,
                names.CGROUP_PERIODS: group.periods,
                names.CGROUP_THROTTLED_PERIODS: group.throttled_periods,
                names.CGROUP_THROTTLED_TIME: group.throttled_s,
            },
        )

    def _of_memory(self, pid: int, group: MemoryReading) -> list[Measurement]:
        limits = [limit for limit in (self._host_bytes, group.limit_bytes) if limit]
        values: dict[Metric, float | None] = {
            names.CGROUP_MEMORY_LIMIT: min(limits) if limits else None,
            names.CGROUP_MEMORY: group.usage_bytes,
            names.CGROUP_WORKING_SET: group.working_set_bytes,
            names.CGROUP_OOM_KILLS: group.oom_kills,
        }
        if self._is_detailed:
            values[names.CGROUP_MEMORY_PEAK] = group.peak_bytes
        return _measured(pid, values)

    def close(self) -> None:
        """Close all files of processes and groups."""
        self.follow(())
        for of_cpu in self._cpu.values():
            of_cpu.close()
        for of_memory in self._memory.values():
            of_memory.close()


def _measured(pid: int, values: dict[Metric, float | None]) -> list[Measurement]:
    return [
        Measurement(metric.name, {}, value, pid)
        for metric, value in values.items()
        if value is not None
    ]
