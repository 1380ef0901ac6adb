"""Readings of the host as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.sensors.host.cpu import CpuSensor
from otel_mlperf.sensors.host.disks import DiskSensor
from otel_mlperf.sensors.host.hardware import HardwareSensor
from otel_mlperf.sensors.host.host_memory import MemorySensor
from otel_mlperf.sensors.host.network import NetworkSensor
from otel_mlperf.sensors.host.paging import PagingSensor
from otel_mlperf.sensors.host.pressure import PressureSensor
from otel_mlperf.sensors.kernel_files import PROC, SYS, has_proc
from otel_mlperf.sensors.measurement import Level, Measurement, includes
from otel_mlperf.sensors.psutil_calls import uptime_s

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.sensors.measurement import Sensor


class HostSensor:
    """CPUs, memory, disks and network everywhere; on Linux pressure, paging, hardware, too."""

    def __init__(self, level: Level = "detailed", *, proc: Path = PROC, sys: Path = SYS) -> None:
        self._is_detailed = includes(level, "detailed")
        self._parts: list[Sensor] = [
            CpuSensor(level, sys),
            MemorySensor(level),
            DiskSensor(level, sys),
            NetworkSensor(level, sys),
        ]
        if has_proc(proc):
            self._parts.append(PressureSensor(proc))
            if self._is_detailed:
                self._parts += [PagingSensor(proc), HardwareSensor(proc, sys)]

    def read(self) -> list[Measurement]:
        """Return the readings of all parts; from level ``detailed`` on also the uptime."""
        measured = [measurement for part in self._parts for measurement in part.read()]
        if self._is_detailed:
            measured.append(Measurement(names.SYSTEM_UPTIME.name, {}, uptime_s()))
        return measured

    def close(self) -> None:
        """Close the files of all parts."""
        for part in self._parts:
            part.close()
