"""GPU vendors, and a source of readings that combines the GPUs of all vendors.

To add a vendor to this package, write a module with a ``SensorKind`` that makes a ``GpuVendor``,
and add it to ``VENDORS``. Other packages provide vendors as entry points. This module is used by
the node's agent, and by the sidecar of a task whose GPUs are hidden from the agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.sensors.gpus.amd_gpus import AMD
from otel_mlperf.sensors.gpus.nvidia.nvidia_gpus import NVIDIA
from otel_mlperf.sensors.measurement import Measurement
from otel_mlperf.sensors.sensor_kind import SensorKind, StartedSensor, find_entry_points
from otel_mlperf.sensors.timed_sensor import DEADLINE_S, TimedSensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.names import Metric
    from otel_mlperf.sensors.gpus.gpu import Device, GpuVendor
    from otel_mlperf.sensors.sensor_kind import Surroundings

VENDORS: Final[tuple[SensorKind[GpuVendor], ...]] = (NVIDIA, AMD)
GROUP: Final = "otel_mlperf.gpu_vendors"
"""Group of entry points of other packages, each a ``SensorKind`` that makes a ``GpuVendor``."""
SOURCE: Final = "gpu"
_FIRST_LOOK_S: Final = 60.0
"""Maximum time to wait for a vendor's first detection, because loading a driver may be slow."""
_HEALTH: Final = (names.SAMPLER_DURATION.name, names.SAMPLER_LATE.name)

Loads = dict[str, "Callable[[], SensorKind[GpuVendor]]"]


def find_vendors() -> Loads:
    """Return the loader of each vendor by name, of this package first, then of other packages."""
    brought: Loads = {entry.name: entry.load for entry in find_entry_points(GROUP)}
    return {kind.name: lambda kind=kind: kind for kind in VENDORS} | brought


class DetectedVendor(StartedSensor["GpuVendor"]):
    """Sensor of one vendor's GPUs that retries the detection until GPUs are found."""

    def __init__(
        self, name: str, load: Callable[[], SensorKind[GpuVendor]], surroundings: Surroundings
    ) -> None:
        super().__init__(load, surroundings)
        self.devices: tuple[Device, ...] = ()
        """Detected devices; the tuple is replaced as a whole, so that any thread may read it."""
        self.has_looked = False
        self.name = name
        self._vendor: GpuVendor | None = None

    def read(self) -> list[Measurement]:
        """Return the measurements of the vendor's GPUs; empty as long as no GPU is found."""
        measured = super().read()
        if self._sensor is not None:
            self.devices = tuple(
                device._replace(vendor=self.name) for device in self._sensor.devices
            )
        self.has_looked = True
        return measured

    def _start(self) -> GpuVendor | None:
        # The same object is used for all attempts, because it logs each reason only once.
        if self._vendor is None:
            self._vendor = super()._start()
        return self._vendor if self._vendor is not None and self._vendor.detect() else None


class Gpus:
    """Source of the readings of all vendors' GPUs; each vendor has its own thread and deadline.

    ``begin`` and ``take`` never block. A pass ends when each vendor has returned its measurements
    or has missed its deadline. A vendor that hangs delays one pass by its deadline, and no further
    pass as long as it hangs.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        vendors: Loads | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._clock = surroundings.clock
        self._began_s = self._clock()
        self._vendors = [
            DetectedVendor(name, load, surroundings)
            for name, load in (find_vendors() if vendors is None else vendors).items()
        ]
        self._timed = [
            TimedSensor(f"{SOURCE} {vendor.name}", vendor, deadline_s=deadline_s, clock=self._clock)
            for vendor in self._vendors
        ]
        self._answers: dict[int, list[Measurement]] = {}

    @property
    def late(self) -> int:
        """Number of vendor passes that missed the deadline or failed."""
        return sum(timed.late for timed in self._timed)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics of vendors of other packages that are missing in ``names``."""
        return tuple(metric for vendor in self._vendors for metric in vendor.metrics)

    def devices(self) -> tuple[Device, ...]:
        """Return all detected devices, vendor by vendor."""
        return tuple(device for vendor in self._vendors for device in vendor.devices)

    def seen(self) -> tuple[Device, ...] | None:
        """Return all devices; None while a vendor's first detection is pending (at most 60 s)."""
        # The wait is limited, because a vendor that hangs would block the sidecars forever.
        is_over = self._clock() - self._began_s > _FIRST_LOOK_S
        if is_over or all(vendor.has_looked for vendor in self._vendors):
            return self.devices()
        return None

    def begin(self) -> bool:
        """Start a pass of all vendors; return False if a vendor's previous pass still hangs."""
        self._answers = {}
        # Must be a list, because all() with a generator would stop at a vendor that hangs.
        started = [timed.begin() for timed in self._timed]
        return all(started)

    def take(self) -> list[Measurement] | None:
        """Return the pass's measurements of all vendors once; None if the pass has not ended."""
        for place, timed in enumerate(self._timed):
            if place not in self._answers and (answer := timed.take()) is not None:
                self._answers[place] = answer
        return self._merged() if len(self._answers) == len(self._timed) else None

    def read(self) -> list[Measurement]:
        """Run one pass and return its measurements; block at most until the deadline."""
        self.begin()
        self._answers = {place: timed.finish() for place, timed in enumerate(self._timed)}
        return self._merged()

    def close(self) -> None:
        """Close the sensor of every vendor."""
        for timed in self._timed:
            timed.close()

    def _merged(self) -> list[Measurement]:
        measurements = [measurement for answer in self._answers.values() for measurement in answer]
        self._answers = {}
        took_s = [
            measurement.value
            for measurement in measurements
            if measurement.metric == names.SAMPLER_DURATION.name
        ]
        labels = {names.SAMPLER: SOURCE}
        return [
            *(measurement for measurement in measurements if measurement.metric not in _HEALTH),
            Measurement(names.SAMPLER_DURATION.name, labels, max(took_s, default=0.0)),
            Measurement(names.SAMPLER_LATE.name, labels, self.late),
        ]
