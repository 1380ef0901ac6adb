"""Latest readings of a run's GPUs, memory and CPUs.

The readings come from the agent's latest publication next to the journals, or from the run folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Iterable

Value = tuple[int | None, str, dict[str, Any], float]
"""One reading: rank (None: of the node), metric name, labels, value."""
_FIELDS: Final = {
    names.GPU_UTILIZATION.name: "utilization",
    names.GPU_MEMORY_USAGE.name: "memory_bytes",
    names.GPU_MEMORY_LIMIT.name: "memory_limit_bytes",
    names.HW_POWER.name: "power_w",
    names.HW_TEMPERATURE.name: "temperature_c",
}
_OF_DEVICES: Final = (*_FIELDS, names.THROTTLE.name)
_OF_RANKS: Final = (
    names.PROCESS_MEMORY.name,
    names.PROCESS_CPU_UTILIZATION.name,
    names.CGROUP_CPU_LIMIT.name,
)
ASKED: Final = (*_OF_DEVICES, *_OF_RANKS)
"""Metrics used by the live view."""
_IDLE: Final = "gpu_idle"


class DeviceNow(msgspec.Struct, kw_only=True):
    """Latest readings of one GPU; None: the GPU does not provide the metric."""

    id: str
    name: str
    rank: int | None
    """Rank that uses the GPU; None: unknown, or several ranks."""
    utilization: float | None = None
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttled: list[str] = []
    """Reasons why the clocks of the GPU are throttled."""


class Usage(msgspec.Struct, kw_only=True):
    """Resource use of one rank's processes."""

    memory_bytes: float | None = None
    """Resident memory including workers; shared pages are counted in each process."""
    cpus: float | None = None
    """CPUs in use: share of the permitted CPUs times their number."""


def find_devices(values: Iterable[Value]) -> list[DeviceNow]:
    """Return the latest readings of each GPU, without MIG instances; GPUs of ranks come first."""
    devices: dict[str, DeviceNow] = {}
    for rank, metric, labels, value in values:
        if metric not in _OF_DEVICES or not _is_of_a_whole_gpu(labels):
            continue
        device = devices.setdefault(
            labels[names.HW_ID],
            DeviceNow(id=labels[names.HW_ID], name=labels.get(names.HW_NAME, "gpu"), rank=rank),
        )
        if metric in _FIELDS:
            setattr(device, _FIELDS[metric], value)
        # An idle GPU lowers its clocks by itself: this is not throttling.
        elif value and labels.get(names.THROTTLE_REASON) != _IDLE:
            device.throttled.append(labels.get(names.THROTTLE_REASON, ""))
    return sorted(
        devices.values(), key=lambda device: (device.rank is None, device.rank, device.name)
    )


def _is_of_a_whole_gpu(labels: dict[str, Any]) -> bool:
    return (
        names.HW_ID in labels
        and not labels.get(names.HW_PARENT)
        and labels.get(names.HW_GPU_TASK, names.TASK_GENERAL) == names.TASK_GENERAL
        and labels.get(names.HW_SENSOR_LOCATION, "gpu") == "gpu"
    )


def find_usage(values: Iterable[Value]) -> dict[int, Usage]:
    """Return the resource use by rank; readings that belong to no rank are ignored."""
    by_rank: dict[int, Usage] = {}
    shares: dict[int, float] = {}
    limits: dict[int, float] = {}
    for rank, metric, _, value in values:
        if rank is None:
            continue
        if metric == names.PROCESS_MEMORY.name:
            usage = by_rank.setdefault(rank, Usage())
            usage.memory_bytes = (usage.memory_bytes or 0.0) + value
        elif metric == names.PROCESS_CPU_UTILIZATION.name:
            shares[rank] = shares.get(rank, 0.0) + value
        elif metric == names.CGROUP_CPU_LIMIT.name:
            limits[rank] = value
    for rank in shares.keys() & limits.keys():
        by_rank.setdefault(rank, Usage()).cpus = shares[rank] * limits[rank]
    return by_rank
