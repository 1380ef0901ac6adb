"""Kinds of sensors, and the start of sensors that another package provides.

A package provides a sensor by an entry point that names a ``SensorKind``, in the group
``otel_mlperf.sensors``, or ``otel_mlperf.gpu_vendors`` for the GPUs of a vendor.
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
"""Wait before a missing device, or a failed start, is retried."""


class Surroundings(NamedTuple):
    """Context from which a sensor is made."""

    level: Level = "basic"
    """Requested level of readings."""
    run_folder: Path = Path()
    """Folder of the run."""
    pids: Callable[[], Collection[int]] = tuple
    """Returns the current training processes, by their numbers here; called from any thread."""
    proc: Path = PROC
    sys: Path = SYS
    clock: Callable[[], float] = time.monotonic
    """Clock in seconds, for values that are read rarely."""
    loop_threads: Callable[[], Mapping[int, int]] = dict
    """Returns the thread of each training process in which its loop runs, if known."""


class SensorKind(NamedTuple, Generic[SensorT_co]):
    """Kind of a sensor: its name, its factory, and its metrics that ``names`` lacks."""

    name: str
    """Name of its source, among those of ``readings``."""
    make: Callable[[Surroundings], SensorT_co]
    """Makes the sensor; may raise if the machine lacks what it needs, and is then retried later."""
    level: Level = "basic"
    """Level of readings from which upward it is read."""
    metrics: tuple[Metric, ...] = ()
    """Metrics of its own, so that their units and meanings reach the servers."""
    at_once: bool = False
    """Whether a pass takes microseconds and can never hang: then it has no thread of its own. Not
    for sensors of other packages."""


class StartedSensor(Generic[SensorT_co]):
    """Sensor that is loaded and made by the thread that reads it.

    Code of another package that fails or hangs, even during its import, therefore affects only
    itself. Its exceptions go to the reader, once per attempt, with five minutes between two
    attempts.
    """

    def __init__(
        self, load: Callable[[], SensorKind[SensorT_co]], surroundings: Surroundings
    ) -> None:
        self.metrics: tuple[Metric, ...] = ()
        """Its own metrics, once it is loaded; replaced as a whole, so any thread may access it."""
        self._load, self._surroundings = load, surroundings
        self._sensor: SensorT_co | None = None
        self._look_at_s = -math.inf

    def read(self) -> list[Measurement]:
        """Read the sensor; empty while it is missing."""
        now_s = self._surroundings.clock()
        if self._sensor is None and now_s >= self._look_at_s:
            self._look_at_s = now_s + AGAIN_S  # first: otherwise a failure is retried each time
            self._sensor = self._start()
        return [] if self._sensor is None else self._sensor.read()

    def _start(self) -> SensorT_co | None:
        """Make the sensor; None: there is nothing to read, now or at this level."""
        kind = self._load()
        is_kind = isinstance(kind, SensorKind)  # an entry point may name anything
        if not is_kind:
            raise TypeError(
                f"loading a sensor: found {kind!r}, expected a SensorKind; correct the entry point"
            )
        if not includes(self._surroundings.level, kind.level):
            return None
        self.metrics = tuple(kind.metrics)
        return kind.make(self._surroundings)

    def close(self) -> None:
        """Close it."""
        if self._sensor is not None:
            self._sensor.close()


def find_brought(group: str) -> list[EntryPoint]:
    """Return the entry points of installed packages in ``group``, by name, without loading them."""
    try:
        return sorted(entry_points(group=group), key=lambda entry: entry.name)
    except Exception as error:  # noqa: BLE001 - a damaged package must not end the readings
        _log.warning("looking for %s of other packages failed: %r", group, error)
        return []
