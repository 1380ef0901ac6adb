"""What can be asked of one AMD GPU, with which call of ``amdsmi``, in which unit?

Left out: the power limit, whose unit differs between versions. ``gpu`` temperatures are those of
the hottest spot, the one that throttles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.sensors.gpus.gpu import GPU, Call

if TYPE_CHECKING:
    from types import ModuleType

    from otel_mlperf.names import Metric
    from otel_mlperf.sensors.gpus.gpu import Handle, Said
    from otel_mlperf.sensors.levels import Level


def _activity(smi: ModuleType, gpu: Handle) -> list[Said]:
    busy = smi.amdsmi_get_gpu_activity(gpu)
    return [
        *_share(names.GPU_UTILIZATION, {names.HW_GPU_TASK: "general"}, busy["gfx_activity"]),
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

    def ask(smi: ModuleType, gpu: Handle) -> list[Said]:
        sensor_type = smi.AmdSmiTemperatureType[sensor]
        value = smi.amdsmi_get_temp_metric(gpu, sensor_type, smi.AmdSmiTemperatureMetric[metric])
        return [(names.HW_TEMPERATURE_LIMIT if kind else names.HW_TEMPERATURE, labels, value)]

    level: Level = "basic" if place == "gpu" and not kind else "detailed"
    return Call(f"{kind} temperature of the {place}".strip(), level, ask)


def _clock(domain: str, kind: str) -> Call:
    labels = {names.CLOCK_DOMAIN: domain}

    def ask(smi: ModuleType, gpu: Handle) -> list[Said]:
        clock = smi.amdsmi_get_clock_info(gpu, smi.AmdSmiClkType[kind])
        both = ((names.CLOCK, clock["clk"]), (names.CLOCK_LIMIT, clock["max_clk"]))
        return [(metric, labels, mhz * 1e6) for metric, mhz in both if _is_number(mhz)]

    return Call(f"{domain} clock", "basic", ask)


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
    """Whether amdsmi gave a number; it says "N/A" for what a device does not offer."""
    return isinstance(value, int | float)
