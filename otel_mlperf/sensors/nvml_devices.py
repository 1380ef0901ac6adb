"""Which NVIDIA GPUs does this machine have, and which instances are on them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mlperf.sensors.devices import Device, Instance
from otel_mlperf.sensors.nvml_gpu import Found
from otel_mlperf.sensors.nvml_refusals import GONE

if TYPE_CHECKING:
    from types import ModuleType

    from otel_mlperf.sensors.devices import Handle


def find_gpus(nvml: ModuleType) -> tuple[list[Found], int]:
    """Those that answer, in the order of the PCI bus, and how many do not.

    One that this user may not see belongs to neither.

    Raises:
        NVMLError: Not even the number of GPUs can be had.
    """
    found, silent = [], 0
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            found.append(_find_gpu(nvml, index))
        except nvml.NVMLError as error:
            silent += error.value in GONE
    return found, silent


def _find_gpu(nvml: ModuleType, index: int) -> Found:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid, model = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
    instances = _find_instances(nvml, handle)
    device = Device(uuid, index, model, tuple(instance for instance, _ in instances))
    return Found(device, handle, tuple(handle for _, handle in instances))


def _find_instances(nvml: ModuleType, gpu: Handle) -> list[tuple[Instance, Handle]]:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(gpu)
        places = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if current else 0
    except nvml.NVMLError_NotSupported:
        return []
    found = []
    for place in range(places):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
        except nvml.NVMLError_NotFound:
            continue
        instance = Instance(
            nvml.nvmlDeviceGetUUID(handle),
            nvml.nvmlDeviceGetGpuInstanceId(handle),
            nvml.nvmlDeviceGetComputeInstanceId(handle),
        )
        found.append((instance, handle))
    return found
