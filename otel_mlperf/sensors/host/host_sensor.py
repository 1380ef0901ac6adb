"""How is the host, as a whole?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.sensors.host.cpu import CpuSensor, Thermometer, find_thermometers
from otel_mlperf.sensors.host.disks import DiskSensor
from otel_mlperf.sensors.host.host_memory import MemorySensor
from otel_mlperf.sensors.host.network import NetworkSensor
from otel_mlperf.sensors.host.pressure import PressureSensor
from otel_mlperf.sensors.kernel_files import PROC, SYS, KeptFile, parse_uptime
from otel_mlperf.sensors.measurement import Level, Measurement, includes

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.sensors.measurement import Sensor


class HostSensor:
    """CPUs, memory, disks, network and pressure; from ``detailed`` on temperature and uptime."""

    def __init__(self, level: Level = "detailed", *, proc: Path = PROC, sys: Path = SYS) -> None:
        self._parts: list[Sensor] = [
            CpuSensor(level, proc, sys),
            MemorySensor(level, proc),
            DiskSensor(level, proc, sys),
            NetworkSensor(level, proc, sys),
            PressureSensor(level, proc),
        ]
        self._uptime = KeptFile(proc / "uptime", may_lack=False)
        self._is_detailed = includes(level, "detailed")
        self._thermometers: list[Thermometer] = []
        if self._is_detailed:
            self._thermometers = find_thermometers(sys)

    def read(self) -> list[Measurement]:
        """What all of them say."""
        measured = [measurement for part in self._parts for measurement in part.read()]
        if self._is_detailed:
            for thermometer in self._thermometers:
                measured += thermometer.read()
            uptime_s = parse_uptime(self._uptime.read())
            if uptime_s is not None:
                measured.append(Measurement(names.SYSTEM_UPTIME.name, {}, uptime_s))
        return measured

    def close(self) -> None:
        """Closes their files."""
        self._uptime.close()
        for part in self._parts:
            part.close()
