"""GPU vendors, and the readings of all of their GPUs as one source.

A new vendor of this package is a file with a ``SensorKind`` that makes a ``GpuVendor``, and a line
in ``VENDORS``. A vendor of another package is an entry point. All readers of GPUs use this module:
the node's agent, and the sidecar of a task whose GPUs that agent does not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.sensors.gpus.amd_gpus import AMD
from otel_mlperf.sensors.gpus.nvidia.nvidia_gpus import NVIDIA
from otel_mlperf.sensors.measurement import Measurement
from otel_mlperf.sensors.sensor_kind import SensorKind, StartedSensor, find_brought
from otel_mlperf.sensors.timed_sensor import DEADLINE_S, TimedSensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.names import Metric
    from otel_mlperf.sensors.gpus.gpu import Device, GpuVendor
    from otel_mlperf.sensors.sensor_kind import Surroundings

VENDORS: Final[tuple[SensorKind[GpuVendor], ...]] = (NVIDIA, AMD)
GROUP: Final = "otel_mlperf.gpu_vendors"
"""Entry points of other packages, each naming a ``SensorKind`` that makes a ``GpuVendor``."""
SOURCE: Final = "gpu"
_FIRST_LOOK_S: Final = 60.0
"""Maximum wait for a vendor's first look: a driver may take long to load."""
_HEALTH: Final = (names.SAMPLER_DURATION.name, names.SAMPLER_LATE.name)

Loads = dict[str, "Callable[[], SensorKind[GpuVendor]]"]


def find_vendors() -> Loads:
    """Return the loader of each vendor by name: ours first, then those of other packages."""
    brought: Loads = {entry.name: entry.load for entry in find_brought(GROUP)}
    return {kind.name: lambda kind=kind: kind for kind in VENDORS} | brought


class DetectedVendor(StartedSensor["GpuVendor"]):
    """Vendor whose GPUs are looked for until they are found."""

    def __init__(
        self, name: str, load: Callable[[], SensorKind[GpuVendor]], surroundings: Surroundings
    ) -> None:
        super().__init__(load, surroundings)
        self.devices: tuple[Device, ...] = ()
        """Devices as last found; replaced as a whole, so any thread may access it."""
        self.has_looked = False
        self.name = name
        self._vendor: GpuVendor | None = None

    def read(self) -> list[Measurement]:
        """Read its GPUs; empty while there is none."""
        measured = super().read()
        if self._sensor is not None:
            self.devices = tuple(
                device._replace(vendor=self.name) for device in self._sensor.devices
            )
        self.has_looked = True
        return measured

    def _start(self) -> GpuVendor | None:
        # Preserved while it finds nothing: it remembers what it has logged already.
        if self._vendor is None:
            self._vendor = super()._start()
        return self._vendor if self._vendor is not None and self._vendor.detect() else None


class Gpus:
    """Source of the GPUs of all vendors; each vendor has a thread and a deadline of its own.

    ``begin`` and ``take`` never wait. A pass is over when each vendor has answered or is late. A
    vendor that hangs delays the other vendors for its deadline once, and not again while it hangs.
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
        """Return the number of vendor passes that missed the deadline, or failed."""
        return sum(timed.late for timed in self._timed)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Return the vendors' metrics that ``names`` lacks."""
        return tuple(metric for vendor in self._vendors for metric in vendor.metrics)

    def devices(self) -> tuple[Device, ...]:
        """Return all devices as last found, vendor by vendor."""
        return tuple(device for vendor in self._vendors for device in vendor.devices)

    def seen(self) -> tuple[Device, ...] | None:
        """Return all devices once every vendor has looked; None: a first look is pending."""
        # Sidecars wait for this result; one vendor that hangs for good must not block them.
        is_over = self._clock() - self._began_s > _FIRST_LOOK_S
        if is_over or all(vendor.has_looked for vendor in self._vendors):
            return self.devices()
        return None

    def begin(self) -> bool:
        """Start a pass; return False if the last one of a vendor still hangs."""
        self._answers = {}
        begun = [timed.begin() for timed in self._timed]  # a list, so that every vendor is started
        return all(begun)

    def take(self) -> list[Measurement] | None:
        """Return the measurements of all vendors, once; None: not yet."""
        for place, timed in enumerate(self._timed):
            if place not in self._answers and (answer := timed.take()) is not None:
                self._answers[place] = answer
        return self._merged() if len(self._answers) == len(self._timed) else None

    def read(self) -> list[Measurement]:
        """Read once; wait at most until the deadline."""
        self.begin()
        self._answers = {place: timed.finish() for place, timed in enumerate(self._timed)}
        return self._merged()

    def close(self) -> None:
        """Close every vendor."""
        for timed in self._timed:
            timed.close()

    def _merged(self) -> list[Measurement]:
        """Merge the answers, with the pass's duration: that of the slowest vendor."""
        said = [measurement for answer in self._answers.values() for measurement in answer]
        self._answers = {}
        took_s = [
            measurement.value
            for measurement in said
            if measurement.metric == names.SAMPLER_DURATION.name
        ]
        labels = {names.SAMPLER: SOURCE}
        return [
            *(measurement for measurement in said if measurement.metric not in _HEALTH),
            Measurement(names.SAMPLER_DURATION.name, labels, max(took_s, default=0.0)),
            Measurement(names.SAMPLER_LATE.name, labels, self.late),
        ]
