"""Set of the sensors that the agent reads, selected by the level of readings.

A sensor that can block on a driver or a disk is read in its own thread, with a deadline. All other
sensors cost microseconds and are read between two polls of the journals. One sensor measures the
agent itself.
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
"""Maximum of the ring's unread bytes, and its capacity in bytes, by process id."""


class ReadingSource(Protocol):
    """Interface of a source that is started first and read later, such as ``TimedSensor``."""

    def begin(self) -> bool:
        """Start a reading; return whether it was started."""

    def take(self) -> list[Measurement] | None:
        """Return the measurements of the started reading; None if it is not complete yet."""

    def close(self) -> None:
        """Release the resources of the source."""


class DirectSensor:
    """Source that reads its sensor synchronously, and also reports the duration of each reading."""

    def __init__(self, name: str, sensor: Sensor) -> None:
        self._labels = {names.SAMPLER: name}
        self._sensor = sensor
        self._broken = False

    def begin(self) -> bool:
        """Return True without starting anything, because ``take`` reads the sensor."""
        return True

    def take(self) -> list[Measurement]:
        """Read the sensor; return its measurements and the duration of the reading."""
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
    """Sensor that measures the agent's CPU time and memory, and how full the journals are.

    If the agent runs as a thread of the user's program, its memory cannot be measured separately.
    """

    def __init__(self, fullest: Callable[[], Fullest]) -> None:
        self._fullest = fullest
        self._is_process = threading.current_thread() is threading.main_thread()
        self._process = read_psutil("Process")

    def read(self) -> list[Measurement]:
        """Return the current values. ``fullest`` is called once, which resets its maxima."""
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
        """Do nothing, because the sensor has no resources."""


@dataclass
class SensorSet:
    """Set of the sensor sources that can be read on this machine, by name."""

    sources: dict[str, ReadingSource] = field(default_factory=dict)
    devices: Callable[[], Sequence[Device]] = tuple
    """Function that returns the accelerators found so far."""
    views: Callable[[], Mapping[str, Sequence[Device]]] = dict
    """Function that returns the GPUs that each rank with a sampler sees, by journal name."""
    metrics: dict[str, Callable[[], Sequence[Metric]]] = field(default_factory=dict)
    """Functions that return the metrics that ``names`` lacks, by source."""
    pids: frozenset[int] = frozenset()
    """Process ids of the running training processes. Replaced, never changed in place."""
    loop_threads: Mapping[int, int] = field(default_factory=dict)
    """Thread id of the training loop, if known, by process id. Replaced, never changed in place."""


def this_machine(
    options: Options,
    run_folder: Path,
    fullest: Callable[[], Fullest],
    journals: Path | None = None,
    *,
    proc: Path = PROC,
    sys: Path = SYS,
) -> SensorSet:
    """Create the sensors that ``options`` select.

    ``fullest`` returns the fill levels of the journals' rings. ``journals`` is the folder with the
    files of GPU sidecars; None if sidecars are not read.
    """
    machine = SensorSet()
    level = options.readings
    if level == "none":
        return machine
    surroundings = Surroundings(
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
            _add_gpus(machine, surroundings, options, journals)
        elif name in kinds:
            machine.sources[name] = _source(kinds[name], surroundings)
    _add_brought(machine, surroundings)
    machine.sources["agent"] = DirectSensor("agent", HealthSensor(fullest))
    return machine


def _source(kind: SensorKind[Any], surroundings: Surroundings) -> ReadingSource:
    if kind.at_once:
        return DirectSensor(kind.name, kind.make(surroundings))
    return TimedSensor(kind.name, StartedSensor(lambda: kind, surroundings))


def _add_gpus(
    machine: SensorSet, surroundings: Surroundings, options: Options, journals: Path | None
) -> None:
    gpus = Gpus(surroundings)
    machine.sources[GPUS], machine.devices = gpus, gpus.devices
    machine.metrics[GPUS] = lambda: gpus.metrics
    if journals is not None:
        tasks = TaskGpus(journals, gpus.seen, options.readings_s, proc=surroundings.proc)
        machine.sources[TASK_GPUS], machine.views = tasks, lambda: tasks.views
        # A sidecar has the same packages as the agent, so its GPU vendors define the same metrics.
        machine.metrics[TASK_GPUS] = machine.metrics[GPUS]


def _add_brought(machine: SensorSet, surroundings: Surroundings) -> None:
    for name, sensor in find_brought_sensors(surroundings).items():
        if name in {*READING_SOURCES, TASK_GPUS, "agent"}:
            _log.warning("a sensor of another package is ignored: its name %s is built in", name)
            continue
        machine.sources[name] = TimedSensor(name, sensor)
        machine.metrics[name] = partial(getattr, sensor, "metrics")
