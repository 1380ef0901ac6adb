"""How are the training processes of this node, and what may they use?"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from otel_mlperf.sensors.cgroups.cgroup import CgroupSensor
from otel_mlperf.sensors.host.host import PROC, SYS, parse_uptime
from otel_mlperf.sensors.kernel_files import KeptFile, kibibytes, read_once
from otel_mlperf.sensors.processes.family import Family, Moment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from otel_mlperf.sensors.levels import Level
    from otel_mlperf.sensors.measurement import Measurement


class ProcessSensor:
    """Processes that are named to it, their children, and the control groups that they are in."""

    def __init__(
        self,
        level: Level = "detailed",
        *,
        proc: Path = PROC,
        sys: Path = SYS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._level, self._proc, self._clock = level, proc, clock
        self._cgroups = CgroupSensor(level, proc, sys)
        self._uptime = KeptFile(proc / "uptime")
        self._host_bytes = kibibytes(read_once(proc / "meminfo"), b"MemTotal:")
        self._families: dict[int, Family] = {}
        self._never: set[int] = set()

    def follow(self, pids: Collection[int]) -> None:
        """From now on these training processes, and no others.

        One that was started by another of them is not counted among that one's children, and
        neither is the process that reads.
        """
        self._cgroups.follow(pids)
        for pid in [pid for pid in self._families if pid not in pids]:
            self._families.pop(pid).close()
        for pid in pids:
            if pid not in self._families:
                self._families[pid] = Family(pid, self._level, self._proc)
        self._never = {*pids, os.getpid()}

    def read(self) -> list[Measurement]:
        """What they use; each with the number of the training process."""
        found = self._cgroups.read()
        uptime_s = parse_uptime(self._uptime.read())
        for pid, family in self._families.items():
            cpus = self._cgroups.cpus.get(pid)
            moment = Moment(self._clock(), uptime_s, self._host_bytes, cpus)
            found += family.read(moment, self._never)
        return found

    def close(self) -> None:
        """Closes all files."""
        self._uptime.close()
        self._cgroups.close()
        for family in self._families.values():
            family.close()
