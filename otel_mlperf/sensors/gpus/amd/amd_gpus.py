"""What do the AMD GPUs of this machine say?

Through ``amdsmi``, the Python package of ROCm, where it is installed and the ``amdgpu`` driver is
loaded; under the names that NVIDIA's have. Written after the interface of amdsmi 7.0 and its
documentation, and tested with a stand-in for it: never run on an AMD GPU. In particular unverified:
which values real devices leave out, whether its process numbers are the host's, and how a lost
device behaves; here each question that fails is left out and asked again after five minutes.

Read it through ``TimedSensor``, in whose thread everything here happens.
"""

from __future__ import annotations

import logging
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.sensors.gpus.amd.amd_fields import CALLS
from otel_mlperf.sensors.gpus.gpu import Device
from otel_mlperf.sensors.gpus.host_pids import find_host_pids
from otel_mlperf.sensors.levels import includes
from otel_mlperf.sensors.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType

    from otel_mlperf.sensors.gpus.gpu import Call, Handle
    from otel_mlperf.sensors.levels import Level

_log = logging.getLogger("otel_mlperf.sensors")

AGAIN_S: Final = 300.0


class AmdSensor:
    """Readings of every AMD GPU, and what our processes use of them."""

    def __init__(
        self,
        *,
        level: Level = "detailed",
        pids: Callable[[], Collection[int]] = tuple,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pids`` gives our own processes, by their numbers here; ``proc`` is where they are."""
        self.devices: tuple[Device, ...] = ()
        """As last found; replaced as a whole, so any thread may look at it."""
        self._level = level
        self._pids = pids
        self._proc = proc
        self._driver = sys / "module" / "amdgpu"
        self._clock = clock
        self._smi: ModuleType | None = None
        self._handles: list[Handle] = []
        self._calls = [call for call in CALLS if includes(level, call.level)]
        self._look_at_s = clock()
        self._off_until_s: dict[str, float] = {}
        self._said: set[str] = set()

    def read(self) -> list[Measurement]:
        """One pass over all GPUs."""
        now_s = self._clock()
        if self._smi is None and now_s >= self._look_at_s:
            self._look_at_s = now_s + AGAIN_S
            self._look()
        if self._smi is None:
            return []
        ours = find_host_pids(self._pids(), self._proc)
        found: list[Measurement] = []
        for device, handle in zip(self.devices, self._handles, strict=True):
            for call in self._calls:
                found += self._ask(self._smi, call, device, handle, now_s)
            if ours and includes(self._level, "detailed"):
                found += self._ask_processes(self._smi, device, handle, ours)
        return found

    def close(self) -> None:
        """Gives the library back."""
        if self._smi is not None:
            self._smi.amdsmi_shut_down()
            self._smi = None

    def _look(self) -> None:
        if not self._driver.exists() or find_spec("amdsmi") is None:
            return
        try:
            import amdsmi

            amdsmi.amdsmi_init()
            handles = amdsmi.amdsmi_get_processor_handles()
            devices = [_describe(amdsmi, number, one) for number, one in enumerate(handles)]
        except Exception as error:  # noqa: BLE001 - without its library the import fails in any way
            self._say_once(f"no readings of AMD GPUs (looked for again every 5 minutes): {error!r}")
            return
        self._smi, self._handles, self.devices = amdsmi, handles, tuple(devices)

    def _ask(
        self, smi: ModuleType, call: Call, device: Device, gpu: Handle, now_s: float
    ) -> list[Measurement]:
        name = f"{device.uuid} {call.name}"
        if now_s < self._off_until_s.get(name, now_s):
            return []
        try:
            said = call.ask(smi, gpu)
        except Exception as error:  # noqa: BLE001 - versions differ in errors and in what answers hold
            self._off_until_s[name] = now_s + AGAIN_S
            self._say_once(f"GPU {device.uuid} does not give: {call.name} ({error!r})")
            return []
        return [device.measurement(metric, extra, value) for metric, extra, value in said]

    def _ask_processes(
        self, smi: ModuleType, device: Device, gpu: Handle, ours: Collection[int]
    ) -> list[Measurement]:
        try:
            processes = smi.amdsmi_get_gpu_process_list(gpu)
            used = {one["pid"]: one["memory_usage"]["vram_mem"] for one in processes}
        except Exception as error:  # noqa: BLE001 - as above
            self._say_once(f"GPU {device.uuid} does not give: processes ({error!r})")
            return []
        metric = names.DEVICE_PROCESS_MEMORY.name
        return [
            Measurement(metric, device.labels, size, pid, device.uuid)
            for pid, size in used.items()
            if pid in ours
        ]

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            _log.info(line)


def _describe(smi: ModuleType, number: int, gpu: Handle) -> Device:
    model = smi.amdsmi_get_gpu_asic_info(gpu)["market_name"]
    return Device(smi.amdsmi_get_gpu_device_uuid(gpu), number, model)
