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
"""After how long what was not there, or failed to start, is looked for again."""


class Surroundings(NamedTuple):
    """What a sensor is made with."""

    level: Level = "basic"
    """How much is wanted of it."""
    run_folder: Path = Path()
    """Where the run is stored."""
    pids: Callable[[], Collection[int]] = tuple
    """The training processes that there are now, by their numbers here; asked from any thread."""
    proc: Path = PROC
    sys: Path = SYS
    clock: Callable[[], float] = time.monotonic
    """Seconds, for what is asked seldom."""
    loop_threads: Callable[[], Mapping[int, int]] = dict
    """The thread of each training process in which its loop runs, where that is known."""


class SensorKind(NamedTuple, Generic[SensorT_co]):
    """How a sensor is called and made, and what it says that ``names`` does not."""

    name: str
    """The source that it is, among those of ``readings``."""
    make: Callable[[Surroundings], SensorT_co]
    """Makes it; may raise where the machine lacks what it needs, and is then called again later."""
    level: Level = "basic"
    """From which level of readings on it is read."""
    metrics: tuple[Metric, ...] = ()
    """Metrics of its own, so that their units and meanings reach the servers."""
    at_once: bool = False
    """Whether a pass takes microseconds and can never hang: then it has no thread of its own.
    Not for sensors of other packages."""


class StartedSensor(Generic[SensorT_co]):
    """A sensor that is loaded and made by the thread that reads it.

    So code of another package that fails or hangs, even while it is imported, costs itself only:
    what it raises goes to who reads, once per attempt, with five minutes between two of them.
    """

    def __init__(
        self, load: Callable[[], SensorKind[SensorT_co]], surroundings: Surroundings
    ) -> None:
        self.metrics: tuple[Metric, ...] = ()
        """Those of its own, once it is loaded; replaced as a whole, so any thread may look."""
        self._load, self._surroundings = load, surroundings
        self._sensor: SensorT_co | None = None
        self._look_at_s = -math.inf

    def read(self) -> list[Measurement]:
        """What it says; nothing while it is not there."""
        now_s = self._surroundings.clock()
        if self._sensor is None and now_s >= self._look_at_s:
            self._look_at_s = now_s + AGAIN_S  # before what may raise: else it is tried each time
            self._sensor = self._start()
        return [] if self._sensor is None else self._sensor.read()

    def _start(self) -> SensorT_co | None:
        """The sensor; None: there is nothing to read, now or at this level."""
        kind = self._load()
        is_kind = isinstance(kind, SensorKind)  # whatever an entry point names may come
        if not is_kind:
            raise TypeError(
                f"loading a sensor: it is no SensorKind but {kind!r}; name one that makes it"
            )
        if not includes(self._surroundings.level, kind.level):
            return None
        self.metrics = tuple(kind.metrics)
        return kind.make(self._surroundings)

    def close(self) -> None:
        """Closes it."""
        if self._sensor is not None:
            self._sensor.close()


def find_brought(group: str) -> list[EntryPoint]:
    """What installed packages bring to ``group``, by name; none of it is loaded here."""
    try:
        return sorted(entry_points(group=group), key=lambda entry: entry.name)
    except Exception as error:  # noqa: BLE001 - a damaged package must not end the readings
        _log.warning("looking for %s of other packages failed: %r", group, error)
        return []
