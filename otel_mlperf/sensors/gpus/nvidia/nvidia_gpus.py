"""Sensor of the NVIDIA GPUs of this machine and their MIG instances, based on NVML.

NVML is part of the driver. If NVML or the driver is missing, or their versions do not match, the
sensor is off: it logs the reason once and retries every five minutes.

A GPU that stops responding is absent from the readings and counted as lost. NVML is then restarted,
at increasing intervals, until the GPU responds again. NVML calls may hang. Therefore the sensor
must be read through ``TimedSensor``, which runs all of the sensor's code in a separate thread.
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
    """Return the GPUs that respond, in PCI bus order, and the number of unresponsive GPUs.

    GPUs that this user is not allowed to access are in neither. ``Device.number`` is the index on
    the machine, even if a control group hides some GPUs, because otherwise two tasks with one GPU
    each would report the same number.

    Raises:
        NVMLError: the number of GPUs cannot be read.
    """
    places = _read_places(proc)
    gpus, silent = [], 0
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_find_gpu(nvml, index, places))
        except nvml.NVMLError as error:
            # "No permission" must not count: it is permanent, so that restarts would never end.
            silent += error.value in GONE
    return gpus, silent


def _read_places(proc: Path) -> dict[str, int]:
    """Return each GPU's index on the machine by UUID, in the order of PCI addresses."""
    folders = sorted((proc / "driver" / "nvidia" / "gpus").glob("*"))
    matches = (_UUID.search(read_once(folder / "information")) for folder in folders)
    return {uuid[1].decode(): number for number, uuid in enumerate(matches) if uuid}


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
        # Indices may have gaps.
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
"""Initial delay before NVML is restarted for a lost GPU; doubled each time, up to AGAIN_S."""


class NvmlSensor:
    """Sensor of all NVIDIA GPUs, and of the use of these GPUs by training processes."""

    def __init__(
        self,
        *,
        level: Level = "detailed",
        pids: Callable[[], Collection[int]] = tuple,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pids`` returns the ids of training processes, which have folders below ``proc``."""
        self.devices: tuple[Device, ...] = ()
        """Detected and lost devices; replaced as a whole, so that any thread may read the tuple."""
        self._level = level
        self._pids = pids
        self._proc = proc
        self._clock = clock
        self._nvml: ModuleType | None = None
        self._gpus: list[Gpu] = []
        self._losses: dict[str, int] = {}
        self._labels: dict[str, dict[str, str]] = {}
        self._lost: dict[str, tuple[Device, str]] = {}
        self._look_at_s: float | None = None
        """Time of the next restart of NVML; None if no restart is scheduled."""
        self._wait_s = LOST_S
        self._logged: set[str] = set()
        self._xids = Xids()
        self._processes = GpuProcesses(level)

    def detect(self) -> bool:
        """Start NVML; return whether there are GPUs, including unresponsive ones."""
        self._look(self._clock())
        return self._nvml is not None

    def read(self) -> list[Measurement]:
        """Read all GPUs once, after a restart of NVML if one is due."""
        now_s = self._clock()
        if self._look_at_s is not None and now_s >= self._look_at_s:
            self._look(now_s)
        measured: list[Measurement] = []
        if self._nvml is not None:
            ours = find_host_pids(self._pids(), self._proc)
            for gpu in list(self._gpus):  # a copy, since lost GPUs are removed during the loop
                measured += self._read_gpu(self._nvml, gpu, ours, now_s)
            measured += self._xids.read(self._nvml)
        # Reported for all GPUs ever detected, because a lost GPU has no other measurements.
        return measured + [
            self._loss_measurement(uuid, count) for uuid, count in self._losses.items()
        ]

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml is not None:
            self._stop(self._nvml)

    def _loss_measurement(self, uuid: str, count: int) -> Measurement:
        _, why = self._lost.get(uuid, (None, ""))
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
        gpu.log_refusals()
        if uuid in self._lost:
            del self._lost[uuid]
            _log.info("GPU %s responds again", uuid)
            # The delay is reset only if no GPU is lost, because restarts disturb other GPUs.
            self._wait_s = self._wait_s if self._lost else LOST_S
        return measured

    def _lose(self, gpu: Gpu, reason: str, now_s: float) -> None:
        self._gpus.remove(gpu)
        uuid = gpu.device.uuid
        if uuid not in self._lost:
            self._lost[uuid] = gpu.device, reason
            self._losses[uuid] += 1
            _log.warning("GPU %s has stopped responding: %s; NVML will be restarted", uuid, reason)
        # Later losses must not postpone a restart that is already scheduled.
        if self._look_at_s is None:
            self._look_at_s = now_s + self._wait_s

    def _look(self, now_s: float) -> None:
        self._look_at_s = None
        if self._lost:
            self._wait_s = min(2 * self._wait_s, AGAIN_S)
        # The handle of a lost GPU remains invalid until NVML is restarted, which affects all GPUs.
        if self._nvml is not None:
            self._stop(self._nvml)
        import pynvml  # imported late: only in the sensor's thread, never in training processes

        try:
            pynvml.nvmlInit()
            # Assigned before find_gpus, because if that fails, _turn_off must shut NVML down, which
            # counts its starts.
            self._nvml = pynvml
            gpus, silent = find_gpus(pynvml, self._proc)
        except pynvml.NVMLError as error:
            self._turn_off(f"NVML: {error}", now_s)
            return
        if not gpus and not silent:
            self._turn_off("NVML: no GPU is visible to this user", now_s)
            return
        self._gpus = [Gpu(pynvml, gpu, self._level, self._logged) for gpu in gpus]
        self._xids.listen(pynvml, self._gpus)
        self._remember([gpu.device for gpu in gpus])
        if silent or self._lost.keys() - {gpu.device.uuid for gpu in gpus}:
            self._look_at_s = now_s + self._wait_s

    def _remember(self, devices: list[Device]) -> None:
        responding = {device.uuid for device in devices}
        # A lost device keeps its place, because the device indices of processes still include it.
        lost = [device for uuid, (device, _) in self._lost.items() if uuid not in responding]
        self.devices = tuple(sorted([*devices, *lost], key=lambda device: device.number))
        for device in devices:
            self._labels[device.uuid] = device.labels
            self._losses.setdefault(device.uuid, 0)

    def _turn_off(self, reason: str, now_s: float) -> None:
        if self._nvml is not None:
            self._stop(self._nvml)
        self._look_at_s = now_s + (self._wait_s if self._lost else AGAIN_S)
        if reason not in self._logged:
            self._logged.add(reason)
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
