"""Which NVIDIA GPUs does this machine have, and which instances are on them?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from otel_mlperf.sensors.gpus.gpu import Device, Instance
from otel_mlperf.sensors.gpus.nvidia.nvml_gpu import GONE, GpuHandles
from otel_mlperf.sensors.kernel_files import read_once

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from otel_mlperf.sensors.gpus.gpu import Handle

_UUID: Final = re.compile(rb"GPU UUID:\s*(GPU-[0-9a-f-]+)")


def find_gpus(nvml: ModuleType, proc: Path) -> tuple[list[GpuHandles], int]:
    """Those that answer, in the order of the PCI bus, and how many do not.

    One that this user may not see belongs to neither. Their numbers are those of the machine, also
    where a control group hides some: two tasks with a GPU each have not the same one.

    Raises:
        NVMLError: Not even the number of GPUs can be had.
    """
    places = _read_places(proc)
    gpus, silent = [], 0
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_find_gpu(nvml, index, places))
        except nvml.NVMLError as error:
            # "No permission" stays: counted here, it would have NVML started anew for ever.
            silent += error.value in GONE
    return gpus, silent


def _read_places(proc: Path) -> dict[str, int]:
    """Numbers of the machine's GPUs in the order of their addresses, as the driver lists them."""
    folders = sorted((proc / "driver" / "nvidia" / "gpus").glob("*"))
    told = (_UUID.search(read_once(folder / "information")) for folder in folders)
    return {uuid[1].decode(): number for number, uuid in enumerate(told) if uuid}


def _find_gpu(nvml: ModuleType, index: int, places: dict[str, int]) -> GpuHandles:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    instances = _find_instances(nvml, handle)
    device = Device(
        uuid, places.get(uuid, index), model, tuple(instance for instance, _ in instances)
    )
    return GpuHandles(device, handle, tuple(handle for _, handle in instances))


def _find_instances(nvml: ModuleType, gpu: Handle) -> list[tuple[Instance, Handle]]:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(gpu)
        places = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if current else 0
    except nvml.NVMLError_NotSupported:
        return []
    instances = []
    for place in range(places):
        # Places may be empty in between.
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
        except nvml.NVMLError_NotFound:
            continue
        instance = Instance(
            nvml.nvmlDeviceGetUUID(handle),
            nvml.nvmlDeviceGetGpuInstanceId(handle),
            nvml.nvmlDeviceGetComputeInstanceId(handle),
        )
        instances.append((instance, handle))
    return instances
