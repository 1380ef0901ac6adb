"""Sensor of the AMD GPUs of this machine, based on ROCm's Python package ``amdsmi``.

The sensor is active if ``amdsmi`` is installed and the ``amdgpu`` driver is loaded. Its metrics
have the same names as those of NVIDIA GPUs. A failed call is skipped and retried after five
minutes.

The code follows the documentation of amdsmi 7.0 and is tested with a stand-in, never on an AMD GPU.
In particular, the following is unverified:

- the values that real devices do not provide,
- whether amdsmi's process ids are those of the host,
- the behaviour of a lost device.

The power limit is not read, because its unit differs between versions. Temperatures of ``gpu`` are
those of the hotspot sensor, which determines throttling.
"""

from __future__ import annotations

import logging
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.sensors.gpus.gpu import GPU, Call, Device, find_host_pids
from otel_mlperf.sensors.measurement import Measurement, includes
from otel_mlperf.sensors.sensor_kind import AGAIN_S, SensorKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType

    from otel_mlperf.names import Metric
    from otel_mlperf.sensors.gpus.gpu import Handle, Said
    from otel_mlperf.sensors.measurement import Level


def _activity(smi: ModuleType, gpu: Handle) -> list[Said]:
    busy = smi.amdsmi_get_gpu_activity(gpu)
    return [
        *_share(
            names.GPU_UTILIZATION, {names.HW_GPU_TASK: names.TASK_GENERAL}, busy["gfx_activity"]
        ),
        *_share(names.MEMORY_BUSY, {}, busy["umc_activity"]),
    ]


def _memory(smi: ModuleType, gpu: Handle) -> list[Said]:
    kind = smi.AmdSmiMemoryType.VRAM
    used = smi.amdsmi_get_gpu_memory_usage(gpu, kind)
    limit = smi.amdsmi_get_gpu_memory_total(gpu, kind)
    return [
        (names.GPU_MEMORY_USAGE, {}, used),
        (names.GPU_MEMORY_LIMIT, {}, limit),
        (names.GPU_MEMORY_UTILIZATION, {}, used / limit),
    ]


def _power(smi: ModuleType, gpu: Handle) -> list[Said]:
    power = smi.amdsmi_get_power_info(gpu)
    # MI300 and later report the current power, earlier models an average.
    for key in ("current_socket_power", "average_socket_power"):
        if _is_number(power[key]):
            return [(names.HW_POWER, GPU, power[key])]
    return []


def _energy(smi: ModuleType, gpu: Handle) -> list[Said]:
    count = smi.amdsmi_get_energy_count(gpu)
    microjoules = count["energy_accumulator"] * count["counter_resolution"]
    return [(names.HW_ENERGY, GPU, microjoules / 1e6)]


def _temperature(place: str, sensor: str, kind: str = "") -> Call:
    metric = {"": "CURRENT", "throttled": "CRITICAL", "critical": "EMERGENCY"}[kind]
    labels = {names.HW_SENSOR_LOCATION: place} | ({names.HW_LIMIT_TYPE: kind} if kind else {})

    def read(smi: ModuleType, gpu: Handle) -> list[Said]:
        sensor_type = smi.AmdSmiTemperatureType[sensor]
        value = smi.amdsmi_get_temp_metric(gpu, sensor_type, smi.AmdSmiTemperatureMetric[metric])
        return [(names.HW_TEMPERATURE_LIMIT if kind else names.HW_TEMPERATURE, labels, value)]

    level: Level = "basic" if place == "gpu" and not kind else "detailed"
    return Call(f"{kind} temperature of the {place}".strip(), level, read)


def _clock(domain: str, kind: str) -> Call:
    labels = {names.CLOCK_DOMAIN: domain}

    def read(smi: ModuleType, gpu: Handle) -> list[Said]:
        clock = smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType[kind])
        both = ((names.CLOCK, clock["clk"]), (names.CLOCK_LIMIT, clock["max_clk"]))
        return [(metric, labels, mhz * 1e6) for metric, mhz in both if _is_number(mhz)]

    return Call(f"{domain} clock", "basic", read)


def _errors(smi: ModuleType, gpu: Handle) -> list[Said]:
    count = smi.amdsmi_get_gpu_total_ecc_count(gpu)
    kinds = {"corrected": "correctable_count", "uncorrected": "uncorrectable_count"}
    return [
        (names.HW_ERRORS, GPU | {names.ERROR_TYPE: kind}, count[key]) for kind, key in kinds.items()
    ]


def _pcie(smi: ModuleType, gpu: Handle) -> list[Said]:
    link = smi.amdsmi_get_pcie_info(gpu)
    both = (
        (names.PCIE_WIDTH, link["pcie_metric"]["pcie_width"]),
        (names.PCIE_WIDTH_LIMIT, link["pcie_static"]["max_pcie_width"]),
    )
    return [(metric, {}, lanes) for metric, lanes in both if _is_number(lanes)]


CALLS: Final = (
    Call("activity", "basic", _activity),
    Call("memory", "basic", _memory),
    Call("power", "basic", _power),
    Call("energy", "basic", _energy),
    _temperature("gpu", "HOTSPOT"),
    _temperature("memory", "VRAM"),
    _temperature("gpu", "HOTSPOT", "throttled"),
    _temperature("gpu", "HOTSPOT", "critical"),
    _clock("sm", "GFX"),
    _clock("memory", "MEM"),
    Call("errors", "basic", _errors),
    Call("PCIe link", "detailed", _pcie),
)


def _share(metric: Metric, labels: dict[str, str], percent: Any) -> list[Said]:
    return [(metric, labels, percent / 100)] if _is_number(percent) else []


def _is_number(value: Any) -> bool:
    """Return whether ``value`` is a number; amdsmi reports "N/A" for values that a device lacks."""
    return isinstance(value, int | float)


_log = logging.getLogger("otel_mlperf.sensors")


class AmdSensor:
    """Sensor of all AMD GPUs, and of the use of these GPUs by training processes."""

    def __init__(
        self,
        *,
        level: Level = "detailed",
        pids: Callable[[], Collection[int]] = tuple,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pids`` returns the ids of training processes, which have folders below ``proc``."""
        self.devices: tuple[Device, ...] = ()
        """Detected devices; the tuple is replaced as a whole, so that any thread may read it."""
        self._level = level
        self._pids = pids
        self._proc = proc
        self._driver = sys / "module" / "amdgpu"
        self._clock = clock
        self._smi: ModuleType | None = None
        self._handles: list[Handle] = []
        self._calls = [call for call in CALLS if includes(level, call.level)]
        self._off_until_s: dict[str, float] = {}
        self._logged: set[str] = set()

    def detect(self) -> bool:
        """Initialize the library if the driver is loaded; return whether this succeeded."""
        self._look()
        return self._smi is not None

    def read(self) -> list[Measurement]:
        """Read all GPUs once; return an empty list if none was detected."""
        if self._smi is None:
            return []
        now_s = self._clock()
        ours = find_host_pids(self._pids(), self._proc)
        measured: list[Measurement] = []
        for device, handle in zip(self.devices, self._handles, strict=True):
            for call in self._calls:
                measured += self._read_call(self._smi, call, device, handle, now_s)
            if ours and includes(self._level, "detailed"):
                measured += self._read_processes(self._smi, device, handle, ours)
        return measured

    def close(self) -> None:
        """Shut the library down."""
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
            devices = [_describe(amdsmi, number, handle) for number, handle in enumerate(handles)]
        except Exception as error:  # noqa: BLE001 - without its library the import fails in any way
            self._log_once(f"no readings of AMD GPUs (retried every 5 minutes): {error!r}")
            return
        self._smi, self._handles, self.devices = amdsmi, handles, tuple(devices)

    def _read_call(
        self, smi: ModuleType, call: Call, device: Device, gpu: Handle, now_s: float
    ) -> list[Measurement]:
        name = f"{device.uuid} {call.name}"
        if now_s < self._off_until_s.get(name, now_s):
            return []
        try:
            readings = call.ask(smi, gpu)
        except Exception as error:  # noqa: BLE001 - versions differ in errors and in what answers hold
            self._off_until_s[name] = now_s + AGAIN_S
            self._log_once(f"GPU {device.uuid} does not provide: {call.name} ({error!r})")
            return []
        return [device.measurement(metric, extra, value) for metric, extra, value in readings]

    def _read_processes(
        self, smi: ModuleType, device: Device, gpu: Handle, ours: Collection[int]
    ) -> list[Measurement]:
        try:
            processes = smi.amdsmi_get_gpu_process_list(gpu)
            used = {process["pid"]: process["memory_usage"]["vram_mem"] for process in processes}
        except Exception as error:  # noqa: BLE001 - as above
            self._log_once(f"GPU {device.uuid} does not provide: processes ({error!r})")
            return []
        metric = names.DEVICE_PROCESS_MEMORY.name
        return [
            Measurement(metric, device.labels, size, pid, device.uuid)
            for pid, size in used.items()
            if pid in ours
        ]

    def _log_once(self, line: str) -> None:
        if line not in self._logged:
            self._logged.add(line)
            _log.info(line)


def _describe(smi: ModuleType, number: int, gpu: Handle) -> Device:
    model = smi.amdsmi_get_gpu_asic_info(gpu)["market_name"]
    return Device(smi.amdsmi_get_gpu_device_uuid(gpu), number, model)


AMD: Final = SensorKind(
    "amd",
    lambda of: AmdSensor(level=of.level, pids=of.pids, proc=of.proc, sys=of.sys, clock=of.clock),
)
