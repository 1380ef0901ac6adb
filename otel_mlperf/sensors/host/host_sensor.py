"""Readings of the host as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.sensors.host.cpu import CpuSensor
from otel_mlperf.sensors.host.devices import DISKS, INTERFACES, DeviceSensor
from otel_mlperf.sensors.host.hardware import HardwareSensor
from otel_mlperf.sensors.host.host_memory import read_memory
from otel_mlperf.sensors.host.pressure import PressureSensor
from otel_mlperf.sensors.kernel_files import PROC, SYS, has_proc
from otel_mlperf.sensors.measurement import Level, Measurement, includes
from otel_mlperf.sensors.psutil_calls import uptime_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class HostSensor:
    """Sensor of the host: CPUs, memory, disks, network; more with ``/proc``.

    ``/proc`` adds stalls, paging, frequency and temperature.
    """

    def __init__(self, level: Level = "detailed", *, proc: Path = PROC, sys: Path = SYS) -> None:
        self._is_detailed = includes(level, "detailed")
        self._reads: list[Callable[[], list[Measurement]]] = [
            CpuSensor(level, sys).read,
            lambda: read_memory(level),
            DeviceSensor(DISKS, level, sys).read,
            DeviceSensor(INTERFACES, level, sys).read,
        ]
        self._pressure = PressureSensor(level, proc)
        if has_proc(proc):
            self._reads.append(self._pressure.read)
            if self._is_detailed:
                self._reads.append(HardwareSensor(proc, sys).read)

    def read(self) -> list[Measurement]:
        """Return the readings of all parts; from level ``detailed`` upward also the uptime."""
        measured = [measurement for read in self._reads for measurement in read()]
        if self._is_detailed:
            measured.append(Measurement(names.SYSTEM_UPTIME.name, {}, uptime_s()))
        return measured

    def close(self) -> None:
        """Close all files."""
        self._pressure.close()
