"""Mapping of CUDA device indices of a process, and of ranks, to the machine's GPUs.

CUDA numbers the GPUs that are visible to a process from zero; NVML numbers all GPUs of the machine.
Environment variables of the process determine the mapping. The CUDA driver's rules for these
variables are not fully documented:

- The first entry that matches no GPU ends the list.
- A GPU that is listed twice makes the list empty.
- Only the leading digits of a number are read.
- If several MIG instances are listed, only the first is visible.

If the order cannot be determined (GPUs of different models, sorted by speed), no GPU is returned.
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
"""All environment variables that affect which GPUs are visible to a process."""

_ALL: Final = frozenset({"", "all", "none", "void"})
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")


def find_visible(environ: Mapping[str, str], devices: Sequence[Device]) -> list[str]:
    """Return the UUIDs of GPUs and MIG instances visible to a process, by CUDA device index.

    The list is empty if the order of the GPUs cannot be determined.

    Args:
        environ: the process's environment variables at the time of its first use of CUDA.
        devices: all GPUs that the process can access, for each vendor in the order of its driver.
    """
    # A process uses the GPUs of one vendor; if there are several, the first is assumed.
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
    """Return the UUID of the GPU that a rank uses by convention; empty if it is not known.

    By convention, this is the only visible GPU or else the visible GPU with index ``local_rank``.
    """
    visible = find_visible(environ, devices)
    if len(visible) == 1:
        return visible[0]
    return visible[local_rank] if 0 <= local_rank < len(visible) else ""


def _given_by_container(listed: str, devices: Sequence[Device]) -> list[Device]:
    """Return the devices that the container runtime exposes, in PCI bus order.

    ``listed`` is the runtime's list. It is ignored if an entry matches no device: in a container,
    NVML reports only the exposed devices, but the entries can be indices of the host.
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
    """Return whether CUDA uses PCI bus order: this is configured, or all GPUs are of one model."""
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
    # GPUs and instances cannot be mixed, so that the kind of the first entry decides.
    known, kind = _known_names(devices), listed[:4]
    entries = list(takewhile(lambda entry: entry.startswith(kind), listed.split(",")))
    if len(set(entries)) < len(entries):
        return []
    uuids: list[str] = []
    for entry in entries:
        # An entry may be a prefix of a UUID if the prefix is unambiguous.
        match = {uuid for name, uuid in known.items() if name.startswith(entry)}
        if len(match) != 1:
            break
        uuids += match
    return uuids if len(set(uuids)) == len(uuids) else []


def _known_names(devices: Sequence[Device]) -> dict[str, str]:
    known = {device.uuid: device.uuid for device in devices}
    for device in devices:
        for instance in device.instances:
            # Format of instance names in drivers before 470.
            old = f"MIG-{device.uuid}/{instance.gpu_instance}/{instance.compute_instance}"
            known[instance.uuid] = known[old] = instance.uuid
    return known


def _parts(device: Device) -> list[str]:
    return [instance.uuid for instance in device.instances] or [device.uuid]


def _first_instance_alone(uuids: list[str], devices: Sequence[Device]) -> list[str]:
    """Return only the first MIG instance if ``uuids`` contains any, else ``uuids`` unchanged.

    CUDA shows a process at most one instance, and no other device in addition.
    """
    instances = {instance.uuid for device in devices for instance in device.instances}
    return next(([uuid] for uuid in uuids if uuid in instances), uuids)
