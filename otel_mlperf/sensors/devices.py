"""What is an accelerator called, whatever its vendor?"""

from __future__ import annotations

from typing import Final, NamedTuple

from otel_mlperf import names

GPU: Final = {names.HW_TYPE: "gpu"}
"""The label of metrics that other hardware has too."""


class Instance(NamedTuple):
    """A part of a GPU with memory and processors of its own (MIG)."""

    uuid: str
    gpu_instance: int
    compute_instance: int


class Device(NamedTuple):
    """One accelerator of this machine."""

    uuid: str
    number: int
    """Its place among the devices of its vendor, in the order of their PCI addresses."""
    model: str
    instances: tuple[Instance, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """What every measurement of it bears."""
        return {names.HW_ID: self.uuid, names.HW_NAME: f"gpu{self.number}"}

    def instance_labels(self, place: int) -> dict[str, str]:
        """What every measurement of the instance at ``place`` bears."""
        return {
            names.HW_ID: self.instances[place].uuid,
            names.HW_NAME: f"gpu{self.number}.mig{place}",
            names.HW_PARENT: self.uuid,
        }
