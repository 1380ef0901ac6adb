"""Counts of the errors that the driver reports of its GPUs (XID).

NVML reports an error once, to registered listeners, and stores none. Errors before the registration
are not counted.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.sensors.gpus.gpu import GPU
from otel_mlperf.sensors.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from otel_mlperf.sensors.gpus.gpu import Handle
    from otel_mlperf.sensors.gpus.nvidia.nvml_gpu import Gpu

AT_MOST: Final = 1000
"""Maximum number of errors per pass; a storm of them must not delay the readings."""


class Xids:
    """Error counts per GPU, preserved when the library is restarted."""

    def __init__(self) -> None:
        self._labels: dict[str, dict[str, str]] = {}
        self._counts: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._set: Any = None
        self._uuid_at: dict[int, str] = {}

    def listen(self, nvml: ModuleType, gpus: Iterable[Gpu]) -> None:
        """Register for errors on every GPU that supports it; once per start of NVML."""
        # A set belongs to one start of the library; the old one was removed with it.
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
        """Return the counts, including errors reported since the last pass."""
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
        for _ in range(AT_MOST):
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, 0)
            except nvml.NVMLError:  # a timeout: there are no more errors
                return
            # By address: the binding creates a new object for the same handle each time.
            uuid = self._uuid_at.get(_address(event.device))
            if uuid is not None:
                self._counts[uuid] += 1
                self._last[uuid] = int(event.eventData)


def _address(handle: Handle) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
