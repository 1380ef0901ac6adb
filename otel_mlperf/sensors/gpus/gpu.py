"""Interface of accelerators of any vendor: devices, instances, and calls to read them.

The module also determines which training processes can be found in the process list of a driver.
Drivers report process ids of the host. In a container, the same id is that of a different process,
or of none. Therefore only processes in the host's PID namespace are considered. (Some newer drivers
translate the ids, but this cannot be detected and is not used.)
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
"""A vendor library's handle of a device."""
Said = tuple["Metric", dict[str, str], float]
"""A reading: metric, labels in addition to those of the device, and value."""

GPU: Final = {names.HW_TYPE: "gpu"}
"""Labels that mark readings of a GPU, for metrics that also describe other hardware."""


class Instance(NamedTuple):
    """MIG instance: a partition of a GPU with separate memory and processors."""

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
    """Name of the vendor, set by ``DetectedVendor``, not by the vendor's own code."""

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every measurement of the device."""
        return {names.HW_ID: self.uuid, names.HW_NAME: f"gpu{self.number}"}

    def measurement(self, metric: Metric, extra: dict[str, str], value: float) -> Measurement:
        """Return a measurement of the whole device, with the device's and the ``extra`` labels."""
        return _measurement(self, metric, self.labels | extra, value)

    def instance_measurement(
        self, place: int, metric: Metric, extra: dict[str, str], value: float
    ) -> Measurement:
        """Return a measurement of the MIG instance at index ``place``, with ``extra`` labels."""
        return _measurement(self, metric, self.instance_labels(place) | extra, value)

    def instance_labels(self, place: int) -> dict[str, str]:
        """Return the labels of every measurement of the MIG instance at index ``place``."""
        return {
            names.HW_ID: self.instances[place].uuid,
            names.HW_NAME: f"gpu{self.number}.mig{place}",
            names.HW_PARENT: self.uuid,
        }


class GpuVendor(Protocol):
    """Interface of a sensor for the GPUs of one vendor; all calls are from one dedicated thread.

    Implementations use the metrics in ``names`` where possible, and create measurements with
    ``Device.measurement``.
    """

    @property
    def devices(self) -> Sequence[Device]:
        """All devices, lost ones included, in the order in which processes number them."""

    def detect(self) -> bool:
        """Initialize the library, find devices, and return whether there are devices to read.

        Called before the first reading, and every five minutes as long as it returns False. The
        implementation logs the reason for False once. An exception affects only this vendor.
        """

    def read(self) -> list[Measurement]:
        """Return the measurements of all devices; only called if ``detect`` returned True."""

    def close(self) -> None:
        """Shut the vendor's library down."""


class Call(NamedTuple):
    """Call of a vendor library that reads values of a device."""

    name: str
    level: Level
    ask: Callable[[ModuleType, Handle], list[Said]]
    seldom: bool = False
    """Whether the result rarely changes: then it is read once a minute and repeated in between."""


def _measurement(
    device: Device, metric: Metric, labels: dict[str, str], value: float
) -> Measurement:
    if names.HW_MODEL in metric.labels:
        labels |= {names.HW_MODEL: device.model}
    return Measurement(metric.name, labels, value, device=labels[names.HW_ID])


HOST_NAMESPACE: Final = "pid:[4026531836]"
"""Name of the initial PID namespace on any Linux (inode ``PROC_PID_INIT_INO``)."""


def find_host_pids(pids: Collection[int], proc: Path) -> frozenset[int]:
    """Return the ids in ``pids`` whose processes are in the host's PID namespace."""
    return frozenset(pid for pid in pids if _namespace(pid, proc) == HOST_NAMESPACE)


def _namespace(pid: int, proc: Path) -> str:
    # An error is ignored, because the process has ended or belongs to another user.
    try:
        return (proc / str(pid) / "ns" / "pid").readlink().name
    except OSError:
        return ""
