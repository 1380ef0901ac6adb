"""Set of the sensors that the agent reads, by level.

Sensors that may wait for a driver or a disk are read in a thread of their own, with a deadline. The
others take microseconds and are read between two looks at the journals. One of the sensors is the
agent's own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from otel_mlperf import names
from otel_mlperf.agent.readings.gpu_visibility import TaskGpus
from otel_mlperf.journal.bulletin import GPUS, TASK_GPUS
from otel_mlperf.sensors.gpus.vendors import Gpus
from otel_mlperf.sensors.kernel_files import PROC, SYS
from otel_mlperf.sensors.measurement import Measurement
from otel_mlperf.sensors.psutil_calls import read_psutil
from otel_mlperf.sensors.sensor_kind import StartedSensor, Surroundings
from otel_mlperf.sensors.sensor_list import SENSORS, find_brought_sensors
from otel_mlperf.sensors.timed_sensor import TimedSensor
from otel_mlperf.settings.config import READING_SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from otel_mlperf.agent.model.agent_options import Options
    from otel_mlperf.names import Metric
    from otel_mlperf.sensors.gpus.gpu import Device
    from otel_mlperf.sensors.measurement import Sensor
    from otel_mlperf.sensors.sensor_kind import SensorKind

_log = logging.getLogger("otel_mlperf.agent")

Fullest = dict[int, tuple[int, int]]
"""Waiting bytes and capacity in bytes, by process."""


class ReadingSource(Protocol):
    """Interface of a sensor that is started and read later, as ``TimedSensor``."""

    def begin(self) -> bool:
        """Start a pass."""

    def take(self) -> list[Measurement] | None:
        """Return the result of the pass; None: not yet."""

    def close(self) -> None:
        """Release resources."""


class DirectSensor:
    """Source that is read synchronously, and reports how long that took."""

    def __init__(self, name: str, sensor: Sensor) -> None:
        self._labels = {names.SAMPLER: name}
        self._sensor = sensor
        self._broken = False

    def begin(self) -> bool:
        """Return True, because a pass never waits."""
        return True

    def take(self) -> list[Measurement]:
        """Read once."""
        began_s = time.perf_counter()
        try:
            measured = self._sensor.read()
        except Exception:  # noqa: BLE001 - a sensor must not stop the agent
            if not self._broken:
                _log.exception("reading the %s sensor failed", self._labels[names.SAMPLER])
            self._broken, measured = True, []
        took_s = time.perf_counter() - began_s
        return [*measured, Measurement(names.SAMPLER_DURATION.name, self._labels, took_s)]

    def close(self) -> None:
        """Close the sensor."""
        self._sensor.close()


class HealthSensor:
    """Sensor of the agent's own CPU time and memory, and of the journals of the ranks.

    If the agent is a thread of the program, its memory is not known separately.
    """

    def __init__(self, fullest: Callable[[], Fullest]) -> None:
        self._fullest = fullest
        self._is_process = threading.current_thread() is threading.main_thread()
        self._process = read_psutil("Process")

    def read(self) -> list[Measurement]:
        """Read the current values; ``fullest`` is called once."""
        measured = self._of_process() if self._is_process else self._of_thread()
        for pid, (waited, room) in self._fullest().items():
            measured.append(Measurement(names.JOURNAL_USAGE.name, {}, waited, pid))
            measured.append(Measurement(names.JOURNAL_LIMIT.name, {}, room, pid))
        return measured

    def _of_process(self) -> list[Measurement]:
        times = os.times()
        used = {
            "user": times.user + times.children_user,
            "system": times.system + times.children_system,
        }
        measured = [
            Measurement(names.AGENT_CPU_TIME.name, {names.CPU_MODE: mode}, seconds)
            for mode, seconds in used.items()
        ]
        if self._process is not None:
            resident_bytes = self._process.memory_info().rss
            measured.append(Measurement(names.AGENT_MEMORY.name, {}, resident_bytes))
        return measured

    def _of_thread(self) -> list[Measurement]:
        return [Measurement(names.AGENT_CPU_TIME.name, {}, time.thread_time())]

    def close(self) -> None:
        """Do nothing; no resource is open."""


@dataclass
class SensorSet:
    """Set of the sources that can be read here."""

    sources: dict[str, ReadingSource] = field(default_factory=dict)
    devices: Callable[[], Sequence[Device]] = tuple
    """The accelerators found so far."""
    views: Callable[[], Mapping[str, Sequence[Device]]] = dict
    """GPUs of ranks that see others than the agent, by their journals."""
    metrics: dict[str, Callable[[], Sequence[Metric]]] = field(default_factory=dict)
    """Metrics that ``names`` lacks, by source: of sensors of other packages."""
    pids: frozenset[int] = frozenset()
    """Current training processes, for sensors that need them; replaced as a whole."""
    loop_threads: Mapping[int, int] = field(default_factory=dict)
    """Thread in which the loop of each process runs, if known; replaced as a whole."""


def this_machine(
    options: Options,
    run_folder: Path,
    fullest: Callable[[], Fullest],
    journals: Path | None = None,
    *,
    proc: Path = PROC,
    sys: Path = SYS,
) -> SensorSet:
    """Make the sensors that ``options`` select; ``journals`` is the folder of samplers' files."""
    machine = SensorSet()
    level = options.readings
    if level == "none":
        return machine
    here = Surroundings(
        level,
        run_folder,
        pids=lambda: machine.pids,
        proc=proc,
        sys=sys,
        loop_threads=lambda: machine.loop_threads,
    )
    kinds = {kind.name: kind for kind in SENSORS}
    for name in READING_SOURCES:
        if name not in options.sources:
            continue
        if name == GPUS:
            _add_gpus(machine, here, options, journals)
        elif name in kinds:
            machine.sources[name] = _source(kinds[name], here)
    _add_brought(machine, here)
    machine.sources["agent"] = DirectSensor("agent", HealthSensor(fullest))
    return machine


def _source(kind: SensorKind[Any], here: Surroundings) -> ReadingSource:
    if kind.at_once:
        return DirectSensor(kind.name, kind.make(here))
    return TimedSensor(kind.name, StartedSensor(lambda: kind, here))


def _add_gpus(
    machine: SensorSet, here: Surroundings, options: Options, journals: Path | None
) -> None:
    gpus = Gpus(here)
    machine.sources[GPUS], machine.devices = gpus, gpus.devices
    machine.metrics[GPUS] = lambda: gpus.metrics
    if journals is not None:
        tasks = TaskGpus(journals, gpus.seen, options.readings_s, proc=here.proc)
        machine.sources[TASK_GPUS], machine.views = tasks, lambda: tasks.views
        # A sidecar has the same packages as the agent, so its vendors have the same metrics.
        machine.metrics[TASK_GPUS] = machine.metrics[GPUS]


def _add_brought(machine: SensorSet, here: Surroundings) -> None:
    for name, sensor in find_brought_sensors(here).items():
        if name in {*READING_SOURCES, TASK_GPUS, "agent"}:
            _log.warning("a sensor of another package is ignored: its name %s is built in", name)
            continue
        machine.sources[name] = TimedSensor(name, sensor)
        machine.metrics[name] = partial(getattr, sensor, "metrics")
