"""Which sensors does the agent read, at which level?

What may wait for a driver or a disk is read in a thread of its own, with a deadline; the rest takes
microseconds and is read between two looks at the journals.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from otel_mlperf import names
from otel_mlperf.agent.readings.agent_health import HealthSensor
from otel_mlperf.agent.readings.task_gpus import TaskGpus
from otel_mlperf.journal.bulletin import TASK_GPUS
from otel_mlperf.sensors.deadline import TimedSensor
from otel_mlperf.sensors.gpus.amd.amd_gpus import AmdSensor
from otel_mlperf.sensors.gpus.nvidia.nvidia_gpus import NvmlSensor
from otel_mlperf.sensors.host.disks import FilesystemSensor
from otel_mlperf.sensors.host.host_sensor import HostSensor
from otel_mlperf.sensors.kernel_files import PROC, SYS
from otel_mlperf.sensors.measurement import Measurement
from otel_mlperf.sensors.processes.training_processes import ProcessSensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.agent.readings.agent_health import Fullest
    from otel_mlperf.sensors.gpus.gpu import Device
    from otel_mlperf.sensors.measurement import Level, Sensor

_log = logging.getLogger("otel_mlperf.agent")


class ReadingSource(Protocol):
    """A sensor that is asked and answers later, as ``TimedSensor``."""

    def begin(self) -> bool:
        """Begins a pass."""

    def take(self) -> list[Measurement] | None:
        """What it gave; None: not yet."""

    def close(self) -> None:
        """Gives back what it holds."""


class DirectSensor:
    """A source that answers at once, and says how long that took."""

    def __init__(self, name: str, sensor: Sensor) -> None:
        self._labels = {names.SAMPLER: name}
        self._sensor = sensor
        self._broken = False

    def begin(self) -> bool:
        """Nothing waits."""
        return True

    def take(self) -> list[Measurement]:
        """One pass."""
        began_s = time.perf_counter()
        try:
            found = self._sensor.read()
        except Exception:  # noqa: BLE001 - the agent has more to do than to read sensors
            if not self._broken:
                _log.exception("a pass of the %s sensor failed", self._labels[names.SAMPLER])
            self._broken, found = True, []
        took_s = time.perf_counter() - began_s
        return [*found, Measurement(names.SAMPLER_DURATION.name, self._labels, took_s)]

    def close(self) -> None:
        """Closes the sensor."""
        self._sensor.close()


@dataclass
class SensorSet:
    """What can be read here."""

    sources: dict[str, ReadingSource] = field(default_factory=dict)
    devices: Callable[[], Sequence[Device]] = tuple
    """The accelerators found so far."""
    views: Callable[[], Mapping[str, Sequence[Device]]] = dict
    """What ranks see that do not see what the agent sees, by their journals."""
    pids: frozenset[int] = frozenset()
    """The training processes that there are now, for sensors that want to know; replaced whole."""


def this_machine(
    options: Options,
    run_folder: Path,
    fullest: Callable[[], Fullest],
    journals: Path | None = None,
    *,
    proc: Path = PROC,
    sys: Path = SYS,
) -> SensorSet:
    """The sensors that ``options`` ask for; ``journals`` is the folder in which samplers tell."""
    machine = SensorSet()
    level = options.readings
    if level == "none":
        return machine
    found = machine.sources
    if "host" in options.sources:
        found["host"] = DirectSensor("host", HostSensor(level, proc=proc, sys=sys))
    if "process" in options.sources:
        processes = ProcessSensor(level, proc=proc, sys=sys)
        found["process"] = DirectSensor("process", _Processes(processes, lambda: machine.pids))
    if "gpu" in options.sources:
        gpus = _Gpus(level, lambda: machine.pids, proc, sys)
        found["gpu"], machine.devices = TimedSensor("gpu", gpus), gpus.devices
        if journals is not None:
            tasks = TaskGpus(journals, gpus.seen, options.readings_s, proc=proc)
            found[TASK_GPUS], machine.views = tasks, lambda: tasks.views
    if "filesystem" in options.sources:
        found["filesystem"] = TimedSensor("filesystem", FilesystemSensor(run_folder))
    found["agent"] = DirectSensor("agent", HealthSensor(fullest, proc))
    return machine


class _Processes:
    """The training processes that there are at each reading."""

    def __init__(self, sensor: ProcessSensor, pids: Callable[[], frozenset[int]]) -> None:
        self._sensor, self._pids = sensor, pids

    def read(self) -> list[Measurement]:
        self._sensor.follow(self._pids())
        return self._sensor.read()

    def close(self) -> None:
        self._sensor.close()


class _Gpus:
    """The GPUs of all vendors."""

    def __init__(
        self, level: Level, pids: Callable[[], frozenset[int]], proc: Path, sys: Path
    ) -> None:
        self._nvidia = NvmlSensor(level=level, pids=pids, proc=proc)
        self._amd = AmdSensor(level=level, pids=pids, proc=proc, sys=sys)
        self._has_looked = False

    def devices(self) -> Sequence[Device]:
        """As last found."""
        return self._nvidia.devices or self._amd.devices

    def seen(self) -> Sequence[Device] | None:
        """Those that NVML shows; None: nobody has looked yet."""
        return self._nvidia.devices if self._has_looked else None

    def read(self) -> list[Measurement]:
        found = [*self._nvidia.read(), *self._amd.read()]
        self._has_looked = True
        return found

    def close(self) -> None:
        self._nvidia.close()
        self._amd.close()
