"""GPU use of each of our processes: memory, and the share of time that its work ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Measurement, includes

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType

    from otel_mlperf.sensors.gpus.gpu import Handle
    from otel_mlperf.sensors.gpus.nvidia.nvml_gpu import Gpu
    from otel_mlperf.sensors.measurement import Level

TASKS: Final = {names.TASK_GENERAL: "smUtil", "encoder": "encUtil", "decoder": "decUtil"}


class GpuProcesses:
    """Memory of our processes on each GPU, and on request the time that their work ran there."""

    def __init__(self, level: Level) -> None:
        self._wants_memory = includes(level, "detailed")
        self._wants_time = includes(level, "comprehensive")
        self._seen_us: dict[str, int] = {}

    def read(self, gpu: Gpu, ours: Collection[int], now_s: float) -> list[Measurement]:
        """Read the use of ``gpu`` by the processes ``ours``.

        Raises:
            NVMLError: The device has gone.
        """
        measured: list[Measurement] = []
        if ours and self._wants_memory:
            measured += self._memory(gpu, ours, now_s)
        if ours and self._wants_time:
            measured += self._time(gpu, ours, now_s)
        return measured

    def _memory(self, gpu: Gpu, ours: Collection[int], now_s: float) -> list[Measurement]:
        places = {
            (instance.gpu_instance, instance.compute_instance): place
            for place, instance in enumerate(gpu.device.instances)
        }
        measured = []
        for process in gpu.ask("memory of processes", _ask_processes, gpu.handle, now_s):
            # None: the driver does not report it. As zero it would be a process without memory.
            if process.pid not in ours or process.usedGpuMemory is None:
                continue
            place = places.get((process.gpuInstanceId, process.computeInstanceId))
            labels = gpu.device.labels if place is None else gpu.device.instance_labels(place)
            measured.append(
                Measurement(
                    names.DEVICE_PROCESS_MEMORY.name,
                    labels,
                    process.usedGpuMemory,
                    process.pid,
                    labels[names.HW_ID],
                )
            )
        return measured

    def _time(self, gpu: Gpu, ours: Collection[int], now_s: float) -> list[Measurement]:
        uuid = gpu.device.uuid
        seen_us = self._seen_us.get(uuid, 0)

        def question(nvml: ModuleType, handle: Handle) -> list[Any]:
            return list(nvml.nvmlDeviceGetProcessUtilization(handle, seen_us))

        newest: dict[int, Any] = {}
        for sample in gpu.ask("time of processes", question, gpu.handle, now_s):
            # Over all processes: the next call returns samples newer than this, of any process.
            self._seen_us[uuid] = max(self._seen_us.get(uuid, 0), sample.timeStamp)
            before = newest.get(sample.pid)
            if sample.pid in ours and (before is None or before.timeStamp < sample.timeStamp):
                newest[sample.pid] = sample
        name = names.DEVICE_PROCESS_UTILIZATION.name
        return [
            Measurement(
                name,
                gpu.device.labels | {names.HW_GPU_TASK: task},
                getattr(sample, field) / 100,
                pid,
                uuid,
            )
            for pid, sample in newest.items()
            for task, field in TASKS.items()
        ]


def _ask_processes(nvml: ModuleType, handle: Handle) -> list[Any]:
    return list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
