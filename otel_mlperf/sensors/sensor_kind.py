"""Kinds of sensors, and the start of sensors that other packages provide.

A package provides a sensor by an entry point that is a ``SensorKind``, in the group
``otel_mlperf.sensors``, or in ``otel_mlperf.gpu_vendors`` for the GPUs of a vendor.
"""

from __future__ import annotations

import logging
import math
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from otel_mlperf.sensors.kernel_files import PROC, SYS
from otel_mlperf.sensors.measurement import Sensor, includes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from importlib.metadata import EntryPoint

    from otel_mlperf.names import Metric
    from otel_mlperf.sensors.measurement import Level, Measurement

_log = logging.getLogger("otel_mlperf.sensors")
SensorT_co = TypeVar("SensorT_co", bound=Sensor, covariant=True)

AGAIN_S: Final = 300.0
"""Delay before the detection of a missing device, or a failed start, is retried."""


class Surroundings(NamedTuple):
    """Context that is passed to the factory of a sensor."""

    level: Level = "basic"
    """Requested level of readings."""
    run_folder: Path = Path()
    """Folder of the run."""
    pids: Callable[[], Collection[int]] = tuple
    """Returns the ids of the current training processes; called from any thread."""
    proc: Path = PROC
    sys: Path = SYS
    clock: Callable[[], float] = time.monotonic
    """Clock in seconds, which determines when values that are read rarely are due."""
    loop_threads: Callable[[], Mapping[int, int]] = dict
    """Returns the id of the training loop's thread by process id; unknown threads are missing."""


class SensorKind(NamedTuple, Generic[SensorT_co]):
    """Kind of sensor: name, factory, level, and metrics that are missing in ``names``."""

    name: str
    """Name of the source in the setting ``readings``."""
    make: Callable[[Surroundings], SensorT_co]
    """Makes the sensor; retried later if it raises, e.g. because the machine lacks the device."""
    level: Level = "basic"
    """Minimum level of readings at which the sensor is read."""
    metrics: tuple[Metric, ...] = ()
    """Additional metrics, with the units and descriptions that servers receive."""
    at_once: bool = False
    """Whether a pass lasts microseconds and never hangs, so that no separate thread is needed.

    Ignored for sensors of other packages.
    """


class StartedSensor(Generic[SensorT_co]):
    """Sensor that is loaded and made in the thread that reads the sensor.

    Code of another package that fails or hangs, even during its import, therefore affects only this
    sensor. Exceptions of a failed start are raised by ``read``; the start is retried after five
    minutes.
    """

    def __init__(
        self, load: Callable[[], SensorKind[SensorT_co]], surroundings: Surroundings
    ) -> None:
        self.metrics: tuple[Metric, ...] = ()
        """Additional metrics; the tuple is replaced as a whole, so that any thread may read it."""
        self._load, self._surroundings = load, surroundings
        self._sensor: SensorT_co | None = None
        self._look_at_s = -math.inf

    def read(self) -> list[Measurement]:
        """Return the sensor's measurements; empty as long as the sensor is not started."""
        now_s = self._surroundings.clock()
        if self._sensor is None and now_s >= self._look_at_s:
            self._look_at_s = now_s + AGAIN_S  # set first, since _start may raise
            self._sensor = self._start()
        return [] if self._sensor is None else self._sensor.read()

    def _start(self) -> SensorT_co | None:
        """Make the sensor; return None if the level excludes it or if there is nothing to read."""
        kind = self._load()
        is_kind = isinstance(kind, SensorKind)  # an entry point may be any object
        if not is_kind:
            raise TypeError(
                f"loading a sensor: found {kind!r}, expected a SensorKind; correct the entry point"
            )
        if not includes(self._surroundings.level, kind.level):
            return None
        self.metrics = tuple(kind.metrics)
        return kind.make(self._surroundings)

    def close(self) -> None:
        """Close the sensor if it was started."""
        if self._sensor is not None:
            self._sensor.close()


def find_entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of ``group``, sorted by name, not loaded; [] if the lookup fails."""
    try:
        return sorted(entry_points(group=group), key=lambda entry: entry.name)
    except Exception as error:  # noqa: BLE001 - a damaged package must not end the readings
        _log.warning("looking for %s of other packages failed: %r", group, error)
        return []
