"""Interface of accelerators of any vendor: devices, instances, and calls to read them.

The module also determines which of our processes a driver knows. A driver counts processes as the
host does. In a container the same number is another process, or none. A process therefore counts
only when it lives in the host's process namespace. (Some newer drivers translate the numbers.
Whether one does cannot be detected, so no use is made of it.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path
    from types import ModuleType

    from otel_mlperf.names import Metric
    from otel_mlperf.sensors.measurement import Level

Handle = Any
"""Pointer of a library to a device."""
Said = tuple["Metric", dict[str, str], float]
"""A metric, its labels besides the device's, and the value."""

GPU: Final = {names.HW_TYPE: "gpu"}
"""Label of metrics that other hardware has too."""


class Instance(NamedTuple):
    """Instance of a GPU with memory and processors of its own (MIG)."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class Device(NamedTuple):
    """Accelerator of this machine."""

    uuid: str
    number: int
    """Index among the devices of its vendor, in the order of their PCI addresses."""
    model: str
    instances: tuple[Instance, ...] = ()
    vendor: str = ""
    """Set by the reader of all vendors: a vendor itself need not set it."""

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of every measurement of the device."""
        return {names.HW_ID: self.uuid, names.HW_NAME: f"gpu{self.number}"}

    def measurement(self, metric: Metric, extra: dict[str, str], value: float) -> Measurement:
        """Make a measurement of the whole device."""
        return _measurement(self, metric, self.labels | extra, value)

    def instance_measurement(
        self, place: int, metric: Metric, extra: dict[str, str], value: float
    ) -> Measurement:
        """Make a measurement of the instance at ``place``."""
        return _measurement(self, metric, self.instance_labels(place) | extra, value)

    def instance_labels(self, place: int) -> dict[str, str]:
        """Return the labels of every measurement of the instance at ``place``."""
        return {
            names.HW_ID: self.instances[place].uuid,
            names.HW_NAME: f"gpu{self.number}.mig{place}",
            names.HW_PARENT: self.uuid,
        }


class GpuVendor(Protocol):
    """Interface of the GPUs of one vendor in ``VENDORS``. All calls happen in one thread, its own.

    Metrics are those of ``names`` wherever there is one: ``Device.measurement`` makes them.
    """

    @property
    def devices(self) -> Sequence[Device]:
        """Return the found devices in the order in which processes count them; lost ones stay."""

    def detect(self) -> bool:
        """Start library and driver, find devices, and return whether there is something to read.

        Called before the first reading, and every five minutes while it returns False. It logs the
        reason once. It may raise, which costs this vendor alone.
        """

    def read(self) -> list[Measurement]:
        """Read all devices once; called only once they are detected."""

    def close(self) -> None:
        """Shut the library down."""


class Call(NamedTuple):
    """Call to a device, through the functions of its library."""

    name: str
    level: Level
    ask: Callable[[ModuleType, Handle], list[Said]]
    seldom: bool = False
    """The result hardly ever changes: it is read once a minute and repeated in between."""


def _measurement(
    device: Device, metric: Metric, labels: dict[str, str], value: float
) -> Measurement:
    if names.HW_MODEL in metric.labels:
        labels |= {names.HW_MODEL: device.model}
    return Measurement(metric.name, labels, value, device=labels[names.HW_ID])


HOST_NAMESPACE: Final = "pid:[4026531836]"
"""Name that every Linux gives the namespace of its first process (PROC_PID_INIT_INO)."""


def find_host_pids(pids: Collection[int], proc: Path) -> frozenset[int]:
    """Return those of ``pids`` that have the same number on the host."""
    return frozenset(pid for pid in pids if _namespace(pid, proc) == HOST_NAMESPACE)


def _namespace(pid: int, proc: Path) -> str:
    # The process has ended, or is another user's: its number is ignored.
    try:
        return (proc / str(pid) / "ns" / "pid").readlink().name
    except OSError:
        return ""
