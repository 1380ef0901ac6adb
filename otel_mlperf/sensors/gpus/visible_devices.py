"""Visible GPUs of a process, and the GPU of a rank.

A process counts the GPUs that CUDA shows it from zero; NVML counts those of the machine. Variables
of the process map between the two. The rules are those of the CUDA driver, which no document gives
in full:

- The first entry that names no GPU ends the list.
- A GPU that is named twice empties the list.
- A number is read as far as its digits go.
- Of several MIG instances a process sees the first.

Where the rules do not decide (GPUs of different models in the order of their speed), no GPU is
returned.
"""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_mlperf.sensors.gpus.gpu import Device

CUDA: Final = "CUDA_VISIBLE_DEVICES"
ORDER: Final = "CUDA_DEVICE_ORDER"
CONTAINER: Final = "NVIDIA_VISIBLE_DEVICES"
VARIABLES: Final = (CUDA, ORDER, CONTAINER)
"""All variables that affect visibility."""

_ALL: Final = frozenset({"", "all", "none", "void"})
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")


def find_visible(environ: Mapping[str, str], devices: Sequence[Device]) -> list[str]:
    """Return UUIDs of the GPUs and instances that a process with ``environ`` sees, in its order.

    Args:
        environ: The variables of the process, as they were when it first used CUDA.
        devices: All that this process can see, those of one vendor in the order of its driver.
    """
    # A process counts the GPUs of one vendor; if there are several vendors, of the first.
    devices = [device for device in devices if device.vendor == devices[0].vendor]
    given = _given_by_container(environ.get(CONTAINER, ""), devices)
    listed = environ.get(CUDA)
    if listed is None:
        chosen = given if _order_is_known(environ, given) else []
    elif listed.startswith(("GPU-", "MIG-")):
        return _first_instance_alone(_find_named(listed, given), given)
    else:
        chosen = _find_numbered(listed, given) if _order_is_known(environ, given) else []
    uuids = [uuid for device in chosen for uuid in _parts(device)]
    return _first_instance_alone(uuids, given)


def device_of(local_rank: int, environ: Mapping[str, str], devices: Sequence[Device]) -> str:
    """Return the UUID of the GPU that a rank uses by custom; empty if that is unknown.

    It is the only GPU that the rank sees, otherwise number ``local_rank``.
    """
    visible = find_visible(environ, devices)
    if len(visible) == 1:
        return visible[0]
    return visible[local_rank] if 0 <= local_rank < len(visible) else ""


def _given_by_container(listed: str, devices: Sequence[Device]) -> list[Device]:
    """Return the devices that the container runtime exposes, in the order of the PCI bus.

    Inside the container NVML shows only these already. The list then names all that there are, or
    numbers of the host that do not exist here, and changes nothing.
    """
    wanted = [entry.strip() for entry in listed.split(",")]
    if listed.strip() in _ALL:
        return list(devices)
    by_name = {str(device.number): device for device in devices}
    by_name |= {device.uuid: device for device in devices}
    if not all(entry in by_name for entry in wanted):
        return list(devices)
    chosen = {by_name[entry].uuid for entry in wanted}
    return [device for device in devices if device.uuid in chosen]


def _order_is_known(environ: Mapping[str, str], devices: Sequence[Device]) -> bool:
    """Return whether CUDA counts in the order of the PCI bus: if configured, or with one model."""
    return environ.get(ORDER) == "PCI_BUS_ID" or len({device.model for device in devices}) <= 1


def _find_numbered(listed: str, devices: Sequence[Device]) -> list[Device]:
    matches = takewhile(bool, (_NUMBER.match(entry.strip()) for entry in listed.split(",")))
    numbers = list(
        takewhile(lambda number: number >= 0, (int(match[0]) for match in matches if match))
    )
    if len(set(numbers)) < len(numbers):
        return []
    return [devices[number] for number in takewhile(lambda n: n < len(devices), numbers)]


def _find_named(listed: str, devices: Sequence[Device]) -> list[str]:
    # GPUs and instances are not mixed: the kind of the first entry decides.
    known, kind = _known_names(devices), listed[:4]
    entries = list(takewhile(lambda entry: entry.startswith(kind), listed.split(",")))
    if len(set(entries)) < len(entries):
        return []
    uuids: list[str] = []
    for entry in entries:
        # A prefix of a name is enough, if it matches only one device.
        match = {uuid for name, uuid in known.items() if name.startswith(entry)}
        if len(match) != 1:
            break
        uuids += match
    return uuids if len(set(uuids)) == len(uuids) else []


def _known_names(devices: Sequence[Device]) -> dict[str, str]:
    known = {device.uuid: device.uuid for device in devices}
    for device in devices:
        for instance in device.instances:
            # The name in drivers before 470.
            old = f"MIG-{device.uuid}/{instance.gpu_instance}/{instance.compute_instance}"
            known[instance.uuid] = known[old] = instance.uuid
    return known


def _parts(device: Device) -> list[str]:
    return [instance.uuid for instance in device.instances] or [device.uuid]


def _first_instance_alone(uuids: list[str], devices: Sequence[Device]) -> list[str]:
    """Return only the first instance if there is any: such a process sees nothing else."""
    instances = {instance.uuid for device in devices for instance in device.instances}
    return next(([uuid] for uuid in uuids if uuid in instances), uuids)
