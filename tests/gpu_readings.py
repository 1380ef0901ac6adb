"""What was read of the GPU of a rank, in a run folder that is built by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from run_folders import START, S

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from run_folders import RunFolderBuilder

MIB = 1 << 20


def read_gpu(
    run: RunFolderBuilder, busy: float, seconds: Iterable[float], *, rank: int = 0
) -> None:
    """For which share of the time it has work, and that the rank has memory of it."""
    gpu = {names.HW_ID: f"GPU-{rank}", names.HW_NAME: f"gpu{rank}"}
    for second in seconds:
        use = json.dumps(gpu | {names.HW_GPU_TASK: "general"})
        _read(run, names.GPU_UTILIZATION.name, use, second, busy, None)
        read_device_memory(run, second, 512, rank=rank)


def read_device_memory(run: RunFolderBuilder, second: float, mib: float, *, rank: int = 0) -> None:
    """What the rank's tensors have of it."""
    labels = {
        names.DEVICE_INDEX: "0",
        names.HW_ID: f"GPU-{rank}",
        names.CUDA_MEMORY_STATE: "allocated",
    }
    _read(run, names.CUDA_MEMORY.name, json.dumps(labels), second, mib * MIB, rank)


def _read(
    run: RunFolderBuilder, name: str, labels: str, second: float, value: float, rank: int | None
) -> None:
    at_ns = START + int(second * S)
    run.row(
        "readings",
        rank=rank,
        restart=0,
        name=name,
        labels=labels,
        time_ns=at_ns,
        value=float(value),
    )
