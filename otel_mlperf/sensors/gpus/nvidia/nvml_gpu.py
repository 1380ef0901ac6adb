"""Readers of an NVIDIA GPU's values, processes and errors (XIDs).

A value that NVML refuses for a permanent reason (not supported, no permission) is logged once and
not read again. A value that fails for an unknown reason is retried after five minutes. An error
that means that the whole device is lost is raised to the caller.

NVML reports each XID once, to registered listeners, and does not store it. XIDs before the
registration are not counted.
"""

from __future__ import annotations

import ctypes
import logging
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from otel_mlperf import names
from otel_mlperf.sensors.gpus.gpu import GPU
from otel_mlperf.sensors.gpus.nvidia.nvml_fields import CALLS, VALUES, read_memory
from otel_mlperf.sensors.measurement import Measurement, includes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from types import ModuleType

    from otel_mlperf.sensors.gpus.gpu import Call, Device, Handle, Said
    from otel_mlperf.sensors.gpus.nvidia.nvml_fields import FieldValue
    from otel_mlperf.sensors.measurement import Level

_log = logging.getLogger("otel_mlperf.sensors")

UNKNOWN_S: Final = 300.0

INVALID_ARGUMENT: Final = 2
UNKNOWN: Final = 999
STAYS: Final = frozenset({INVALID_ARGUMENT, 3, 4, 13, 22, 25, 26})
"""NVML error codes that are permanent: not supported, no permission, no such function and so on."""
GONE: Final = frozenset({1, 9, 10, 15, 16, 28})
"""NVML error codes of a lost device: no driver, timeout, lost, reset required and so on."""


class Refusals:
    """Names of the values that one GPU refuses to return, and the time of each value's retry."""

    def __init__(self, nvml: ModuleType, uuid: str, said: set[str]) -> None:
        """``said`` is the set of logged refusals, shared by all objects for the same GPU."""
        self._nvml = nvml
        self._uuid = uuid
        self._said = said
        self._off_until_s: dict[str, float] = {}
        self._has_answered: set[str] = set()
        self._unlogged: dict[str, list[str]] = {}

    def is_on(self, name: str, now_s: float) -> bool:
        """Return whether the value ``name`` should be read at ``now_s``."""
        return now_s >= self._off_until_s.get(name, -math.inf)

    def answered(self, name: str) -> None:
        """Record that the GPU has returned the value ``name``."""
        self._has_answered.add(name)

    def give_up(self, name: str) -> None:
        """Never read the value ``name`` again."""
        self._off_until_s[name] = math.inf

    def refused(self, name: str, code: int, now_s: float) -> None:
        """Record that reading ``name`` failed with the NVML error ``code``.

        Raises:
            NVMLError: the GPU is lost.
        """
        # After a reset of the GPU, some drivers report its handle as an invalid argument.
        if code in GONE or (code == INVALID_ARGUMENT and name in self._has_answered):
            raise self._nvml.NVMLError(code)
        if code in STAYS:
            self.give_up(name)
        # The reason is unknown and may be temporary, so that the value is read again later.
        elif code == UNKNOWN:
            self._off_until_s[name] = now_s + UNKNOWN_S
        else:
            return
        if f"{self._uuid} {name}" not in self._said:
            self._said.add(f"{self._uuid} {name}")
            self._unlogged.setdefault(str(self._nvml.NVMLError(code)), []).append(name)

    def say(self) -> None:
        """Log all refusals since the last call of this method in one line."""
        if self._unlogged:
            reasons = "; ".join(
                f"{', '.join(names)} ({why})" for why, names in self._unlogged.items()
            )
            _log.info("GPU %s does not provide: %s", self._uuid, reasons)
            self._unlogged.clear()


T = TypeVar("T")

SELDOM_S: Final = 60.0

_FIELD_OF_TYPE: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_UNSIGNED_INT: Final = 1


class GpuHandles(NamedTuple):
    """Device with the NVML handles of the GPU and of its instances."""

    device: Device
    handle: Handle
    instances: tuple[Handle, ...] = ()


class Gpu:
    """Reader of a GPU that responds; must be discarded if ``read`` has raised an error."""

    def __init__(self, nvml: ModuleType, handles: GpuHandles, level: Level, said: set[str]) -> None:
        """``said`` is the set of logged refusals, shared by all objects for the same GPU."""
        self.device = handles.device
        self.handle = handles.handle
        self._nvml = nvml
        self._instances = handles.instances
        self._refusals = Refusals(nvml, handles.device.uuid, said)
        self._calls = [call for call in CALLS if includes(level, call.level)]
        self._values = [value for value in VALUES if includes(level, value.level)]
        self._kept: dict[str, tuple[float, list[Said]]] = {}

    def read(self, now_s: float) -> list[Measurement]:
        """Return all values of the requested level that the GPU and its instances provide.

        Raises:
            NVMLError: the GPU is lost.
        """
        readings: list[Said] = []
        for call in self._calls:
            readings += self._read_call(call, now_s)
        readings += self._read_values(now_s)
        measured = [self.device.measurement(*answer) for answer in readings]
        for place, handle in enumerate(self._instances):
            readings = self.ask(f"memory of instance {place}", read_memory, handle, now_s)
            measured += [self.device.instance_measurement(place, *answer) for answer in readings]
        return measured

    def log_refusals(self) -> None:
        """Log the values that the GPU has refused since the last call of this method."""
        self._refusals.say()

    def ask(
        self,
        name: str,
        question: Callable[[ModuleType, Handle], list[T]],
        handle: Handle,
        now_s: float,
    ) -> list[T]:
        """Return the result of the NVML call ``question``; empty if the device refuses the call.

        ``name`` identifies the value, so that a refused value is not read again too early.

        Raises:
            NVMLError: the GPU is lost.
        """
        if not self._refusals.is_on(name, now_s):
            return []
        try:
            answer = question(self._nvml, handle)
        except self._nvml.NVMLError as error:
            self._refusals.refused(name, error.value, now_s)
            return []
        self._refusals.answered(name)
        return answer

    def _read_call(self, call: Call, now_s: float) -> list[Said]:
        if not call.seldom:
            return self.ask(call.name, call.ask, self.handle, now_s)
        read_s, kept = self._kept.get(call.name, (-math.inf, []))
        if now_s - read_s >= SELDOM_S:
            kept = self.ask(call.name, call.ask, self.handle, now_s)
            self._kept[call.name] = now_s, kept
        return kept

    def _read_values(self, now_s: float) -> list[Said]:
        wanted = [value for value in self._values if self._refusals.is_on(value.name, now_s)]
        ids = [(value.id, value.scope) for value in wanted]

        def question(nvml: ModuleType, gpu: Handle) -> list[Any]:
            return list(nvml.nvmlDeviceGetFieldValues(gpu, ids))

        answers = self.ask("numbers by id", question, self.handle, now_s) if ids else []
        readings: list[Said] = []
        # Each number has its own status; ``answers`` is empty if the whole call was refused.
        for value, answer in zip(wanted, answers, strict=False):
            if answer.nvmlReturn:
                self._refusals.refused(value.name, answer.nvmlReturn, now_s)
            elif _wraps(value, answer):
                self._refusals.give_up(value.name)
            else:
                # The value is a C union: only the member for its type contains the right number.
                number = getattr(answer.value, _FIELD_OF_TYPE[answer.valueType])
                readings.append((value.metric, value.labels, number / value.per_unit))
                self._refusals.answered(value.name)
        return readings


def _wraps(value: FieldValue, answer: Any) -> bool:
    """Return whether a value is a 32-bit byte counter, which would wrap between two passes."""
    return value.metric is names.GPU_IO and answer.valueType == _UNSIGNED_INT


TASKS: Final = {names.TASK_GENERAL: "smUtil", "encoder": "encUtil", "decoder": "decUtil"}


class GpuProcesses:
    """GPU memory of training processes and, at level ``comprehensive``, their GPU utilization."""

    def __init__(self, level: Level) -> None:
        self._wants_memory = includes(level, "detailed")
        self._wants_time = includes(level, "comprehensive")
        self._seen_us: dict[str, int] = {}

    def read(self, gpu: Gpu, ours: Collection[int], now_s: float) -> list[Measurement]:
        """Return the measurements of the use of ``gpu`` by the processes ``ours`` (process ids).

        Raises:
            NVMLError: the GPU is lost.
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
        for process in gpu.ask("memory of processes", _read_processes, gpu.handle, now_s):
            # If the driver does not report the memory, the value is None; zero would be wrong.
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
            # The maximum over all processes, because the next call returns only newer samples.
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


def _read_processes(nvml: ModuleType, handle: Handle) -> list[Any]:
    return list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))


MOST_XIDS: Final = 1000
"""Maximum number of errors to read per pass, so that many errors do not delay the readings."""


class Xids:
    """Counts of XID errors by GPU, which are preserved if NVML is restarted."""

    def __init__(self) -> None:
        self._labels: dict[str, dict[str, str]] = {}
        self._counts: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._set: Any = None
        self._uuid_at: dict[int, str] = {}

    def listen(self, nvml: ModuleType, gpus: Iterable[Gpu]) -> None:
        """Register for the errors of each GPU that reports them; must follow each start of NVML."""
        # The previous event set became invalid when NVML was shut down.
        self._uuid_at = {}
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            self._set = None
            return
        for gpu in gpus:
            try:
                nvml.nvmlDeviceRegisterEvents(
                    gpu.handle, nvml.nvmlEventTypeXidCriticalError, self._set
                )
            except nvml.NVMLError:
                continue
            uuid = gpu.device.uuid
            self._uuid_at[_address(gpu.handle)] = uuid
            self._labels[uuid] = gpu.device.labels
            self._counts.setdefault(uuid, 0)

    def read(self, nvml: ModuleType) -> list[Measurement]:
        """Return the error counts since the first registration, and the last error of each GPU."""
        self._take(nvml)
        measured = []
        for uuid, count in self._counts.items():
            labels = self._labels[uuid]
            kind = labels | GPU | {names.ERROR_TYPE: "xid"}
            measured.append(Measurement(names.HW_ERRORS.name, kind, count, device=uuid))
            if uuid in self._last:
                measured.append(Measurement(names.XID.name, labels, self._last[uuid], device=uuid))
        return measured

    def _take(self, nvml: ModuleType) -> None:
        if not self._uuid_at:
            return
        for _ in range(MOST_XIDS):
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, 0)
            except nvml.NVMLError:  # a timeout: no more events are queued
                return
            # Compared by address, because pynvml creates new objects for the same handle.
            uuid = self._uuid_at.get(_address(event.device))
            if uuid is not None:
                self._counts[uuid] += 1
                self._last[uuid] = int(event.eventData)


def _address(handle: Handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
