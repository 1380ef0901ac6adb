"""Readings of the NVIDIA GPUs of this machine, by NVML, and which GPUs and instances it has.

NVML comes with the driver, so there is nothing to install. Without it, without a driver or with one
that does not fit the library, the sensor is off. It logs that once and retries after five minutes.
A GPU that stops answering is absent and counted. NVML is then restarted, at growing intervals,
until the GPU is back. Calls of NVML may hang. The sensor must be read through ``TimedSensor``, in
whose thread all of its code runs.
"""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.sensors.gpus.gpu import Device, Instance, find_host_pids
from otel_mlperf.sensors.gpus.nvidia.nvml_gpu import GONE, Gpu, GpuHandles, GpuProcesses, Xids
from otel_mlperf.sensors.kernel_files import read_once
from otel_mlperf.sensors.measurement import Measurement
from otel_mlperf.sensors.sensor_kind import AGAIN_S, SensorKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType

    from otel_mlperf.sensors.gpus.gpu import Handle
    from otel_mlperf.sensors.measurement import Level


_UUID: Final = re.compile(rb"GPU UUID:\s*(GPU-[0-9a-f-]+)")


def find_gpus(nvml: ModuleType, proc: Path) -> tuple[list[GpuHandles], int]:
    """Return GPUs that answer, in the order of the PCI bus, and the number of silent ones.

    A GPU that this user may not see belongs to neither. Numbers are those of the machine, also if a
    control group hides some GPUs: two tasks with a GPU each do not have the same one.

    Raises:
        NVMLError: Not even the number of GPUs can be read.
    """
    places = _read_places(proc)
    gpus, silent = [], 0
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_find_gpu(nvml, index, places))
        except nvml.NVMLError as error:
            # "No permission" is permanent: counted here, it would restart NVML for ever.
            silent += error.value in GONE
    return gpus, silent


def _read_places(proc: Path) -> dict[str, int]:
    """Return the number of each GPU by UUID, in the order of addresses as the driver lists them."""
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


_log = logging.getLogger("otel_mlperf.sensors")

LOST_S: Final = 5.0
"""First wait before a lost GPU is looked for again; doubled each time, up to AGAIN_S."""


class NvmlSensor:
    """Sensor of every NVIDIA GPU, and of our processes' use of them."""

    def __init__(
        self,
        *,
        level: Level = "detailed",
        pids: Callable[[], Collection[int]] = tuple,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pids`` returns our own processes, by their numbers here; ``proc`` is where they are."""
        self.devices: tuple[Device, ...] = ()
        """Devices as last found, lost ones too; replaced as a whole, so any thread may access it.
"""
        self._level = level
        self._pids = pids
        self._proc = proc
        self._clock = clock
        self._nvml: ModuleType | None = None
        self._gpus: list[Gpu] = []
        self._losses: dict[str, int] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._gone: dict[str, tuple[Device, str]] = {}
        self._look_at_s: float | None = None
        """When NVML is restarted; None: while everything answers, or before ``detect``."""
        self._wait_s = LOST_S
        self._said: set[str] = set()
        self._xids = Xids()
        self._processes = GpuProcesses(level)

    def detect(self) -> bool:
        """Start NVML; return whether there is any GPU, even if it does not answer now."""
        self._look(self._clock())
        return self._nvml is not None

    def read(self) -> list[Measurement]:
        """Read all GPUs once."""
        now_s = self._clock()
        if self._look_at_s is not None and now_s >= self._look_at_s:
            self._look(now_s)
        measured: list[Measurement] = []
        if self._nvml is not None:
            ours = find_host_pids(self._pids(), self._proc)
            for gpu in list(self._gpus):  # a copy: a lost one is removed meanwhile
                measured += self._read_gpu(self._nvml, gpu, ours, now_s)
            measured += self._xids.read(self._nvml)
        # For every GPU that was ever seen: a loss must be reported while the device is away.
        return measured + [self._told_losses(uuid, count) for uuid, count in self._losses.items()]

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml is not None:
            self._stop(self._nvml)

    def _told_losses(self, uuid: str, count: int) -> Measurement:
        _, why = self._gone.get(uuid, (None, ""))
        labels = self._labels[uuid]
        return Measurement(names.DEVICE_LOST.name, labels, count, device=uuid, text=why)

    def _read_gpu(
        self, nvml: ModuleType, gpu: Gpu, ours: Collection[int], now_s: float
    ) -> list[Measurement]:
        uuid = gpu.device.uuid
        try:
            measured = gpu.read(now_s) + self._processes.read(gpu, ours, now_s)
        except nvml.NVMLError as error:
            self._lose(gpu, str(error), now_s)
            return []
        gpu.say_refusals()
        if uuid in self._gone:
            del self._gone[uuid]
            _log.info("GPU %s responds again", uuid)
            # Only when all are back: restarting the library disturbs the GPUs that answer.
            self._wait_s = self._wait_s if self._gone else LOST_S
        return measured

    def _lose(self, gpu: Gpu, reason: str, now_s: float) -> None:
        self._gpus.remove(gpu)
        uuid = gpu.device.uuid
        if uuid not in self._gone:
            self._gone[uuid] = gpu.device, reason
            self._losses[uuid] += 1
            _log.warning("GPU %s has stopped responding: %s; NVML will be restarted", uuid, reason)
        # The first loss sets the time: GPUs that are lost one after the other must not postpone it.
        if self._look_at_s is None:
            self._look_at_s = now_s + self._wait_s

    def _look(self, now_s: float) -> None:
        self._look_at_s = None
        if self._gone:
            self._wait_s = min(2 * self._wait_s, AGAIN_S)
        # A handle of a lost device stays invalid until the library is restarted, for all GPUs.
        if self._nvml is not None:
            self._stop(self._nvml)
        import pynvml  # here: it is loaded by the thread that may hang, and never by training

        try:
            pynvml.nvmlInit()
            # Set before GPUs are looked for: if that fails, NVML, which counts starts, is shut
            # down.
            self._nvml = pynvml
            gpus, silent = find_gpus(pynvml, self._proc)
        except pynvml.NVMLError as error:
            self._turn_off(f"NVML: {error}", now_s)
            return
        if not gpus and not silent:
            self._turn_off("NVML: no GPU is visible to this user", now_s)
            return
        self._gpus = [Gpu(pynvml, gpu, self._level, self._said) for gpu in gpus]
        self._xids.listen(pynvml, self._gpus)
        self._remember([gpu.device for gpu in gpus])
        if silent or self._gone.keys() - {gpu.device.uuid for gpu in gpus}:
            self._look_at_s = now_s + self._wait_s

    def _remember(self, devices: list[Device]) -> None:
        there = {device.uuid for device in devices}
        # A lost device keeps its place, because processes continue to count it.
        lost = [device for uuid, (device, _) in self._gone.items() if uuid not in there]
        self.devices = tuple(sorted([*devices, *lost], key=lambda device: device.number))
        for device in devices:
            self._labels[device.uuid] = device.labels
            self._losses.setdefault(device.uuid, 0)

    def _turn_off(self, reason: str, now_s: float) -> None:
        if self._nvml is not None:
            self._stop(self._nvml)
        self._look_at_s = now_s + (self._wait_s if self._gone else AGAIN_S)
        if reason not in self._said:
            self._said.add(reason)
            _log.info("no readings of NVIDIA GPUs (retried every 5 minutes): %s", reason)

    def _stop(self, nvml: ModuleType) -> None:
        self._nvml, self._gpus = None, []
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError as error:
            _log.debug("NVML did not shut down: %s", error)


NVIDIA: Final = SensorKind(
    "nvidia",
    lambda of: NvmlSensor(level=of.level, pids=of.pids, proc=of.proc, clock=of.clock),
)
