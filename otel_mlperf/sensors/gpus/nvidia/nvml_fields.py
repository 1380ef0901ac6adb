"""Tables of the values of an NVIDIA GPU: NVML calls, field ids, units and throttling reasons.

Each entry of ``CALLS`` contains one NVML function and the conversion of its result into metrics.
``VALUES`` contains field ids, all of which are read with a single NVML call. Ids above 198 are not
used, because their meaning depends on the versions of driver and library. PCIe throughput is not
read, because the call blocks for 20 ms per direction and returns a rate, not a counter. Throttling
reasons have the names that ``nvidia-smi`` prints for ``clocks_event_reasons``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.sensors.gpus.gpu import GPU, Call

if TYPE_CHECKING:
    from types import ModuleType

    from otel_mlperf.names import Metric
    from otel_mlperf.sensors.gpus.gpu import Handle, Said
    from otel_mlperf.sensors.measurement import Level


REASONS: Final = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Throttling reasons by their bit in NVML's mask."""

ALL: Final = sum(REASONS)
OTHER: Final = "other"
"""Reason for all bits of the mask that are missing in ``REASONS``."""

POLICIES: Final = {
    "power": 0,
    "thermal": 1,
    "sync_boost": 2,
    "board_limit": 3,
    "low_utilization": 4,
    "reliability": 5,
}
"""Policies for which NVML reports a throttling time, with their ids in NVML."""


def find_reasons(active: int, supported: int = ALL) -> dict[str, bool]:
    """Return, by throttling reason, whether the reason is active.

    Both arguments are bit masks. All ``supported`` and active reasons are included; OTHER is
    included only if an unknown bit is active.
    """
    reasons = {
        name: bool(active & bit) for bit, name in REASONS.items() if (active | supported) & bit
    }
    if active & ~ALL:
        reasons[OTHER] = True
    return reasons


ALL_LINKS: Final = 0xFFFFFFFF
PSTATE_UNKNOWN: Final = 32


class FieldValue(NamedTuple):
    """Value of a GPU that NVML returns for a field id, and its conversion into a metric."""

    name: str
    level: Level
    id: int
    metric: Metric
    labels: dict[str, str]
    per_unit: float = 1
    """Divisor that converts NVML's unit to the metric's unit."""
    scope: int = 0


def _utilization(nvml: ModuleType, gpu: Handle) -> list[Said]:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return [
        (names.GPU_UTILIZATION, {names.HW_GPU_TASK: names.TASK_GENERAL}, rates.gpu / 100),
        (names.MEMORY_BUSY, {}, rates.memory / 100),
    ]


def _encoder(nvml: ModuleType, gpu: Handle) -> list[Said]:
    share = nvml.nvmlDeviceGetEncoderUtilization(gpu)[0] / 100
    return [(names.GPU_UTILIZATION, {names.HW_GPU_TASK: "encoder"}, share)]


def _decoder(nvml: ModuleType, gpu: Handle) -> list[Said]:
    share = nvml.nvmlDeviceGetDecoderUtilization(gpu)[0] / 100
    return [(names.GPU_UTILIZATION, {names.HW_GPU_TASK: "decoder"}, share)]


def read_memory(nvml: ModuleType, gpu: Handle) -> list[Said]:
    """Return the used, total and reserved memory of a GPU or MIG instance.

    Memory that the driver has reserved does not count as used.
    """
    # Version 1 of this call would include memory reserved by the driver in used memory.
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    return [
        (names.GPU_MEMORY_USAGE, {}, memory.used),
        (names.GPU_MEMORY_LIMIT, {}, memory.total),
        (names.GPU_MEMORY_UTILIZATION, {}, memory.used / memory.total),
        (names.MEMORY_RESERVED, {}, memory.reserved),
    ]


def _power(nvml: ModuleType, gpu: Handle) -> list[Said]:
    return [(names.HW_POWER, GPU, nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3)]


def _power_limit(nvml: ModuleType, gpu: Handle) -> list[Said]:
    return [(names.POWER_LIMIT, {}, nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3)]


def _temperature(nvml: ModuleType, gpu: Handle) -> list[Said]:
    degrees = nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)
    return [(names.HW_TEMPERATURE, {names.HW_SENSOR_LOCATION: "gpu"}, degrees)]


def _margin(nvml: ModuleType, gpu: Handle) -> list[Said]:
    return [(names.TEMPERATURE_MARGIN, {}, nvml.nvmlDeviceGetMarginTemperature(gpu))]


def _threshold(which: int, kind: str, place: str) -> Call:
    def read(nvml: ModuleType, gpu: Handle) -> list[Said]:
        labels = {names.HW_SENSOR_LOCATION: place, names.HW_LIMIT_TYPE: kind}
        degrees = nvml.nvmlDeviceGetTemperatureThreshold(gpu, which)
        return [(names.HW_TEMPERATURE_LIMIT, labels, degrees)]

    return Call(f"{kind} temperature of the {place}", "detailed", read, seldom=True)


def _clock(which: int, domain: str) -> tuple[Call, Call]:
    labels = {names.CLOCK_DOMAIN: domain}

    def current(nvml: ModuleType, gpu: Handle) -> list[Said]:
        return [(names.CLOCK, labels, nvml.nvmlDeviceGetClockInfo(gpu, which) * 1e6)]

    def limit(nvml: ModuleType, gpu: Handle) -> list[Said]:
        return [(names.CLOCK_LIMIT, labels, nvml.nvmlDeviceGetMaxClockInfo(gpu, which) * 1e6)]

    return Call(f"{domain} clock", "basic", current), Call(
        f"{domain} clock limit", "basic", limit, True
    )


def _throttle(nvml: ModuleType, gpu: Handle) -> list[Said]:
    active = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    try:
        supported = nvml.nvmlDeviceGetSupportedClocksEventReasons(gpu)
    except nvml.NVMLError_NotSupported:
        # All reasons, because each series must exist with zero before its reason is active.
        supported = ALL
    return [
        (names.THROTTLE, {names.THROTTLE_REASON: reason}, float(holds))
        for reason, holds in find_reasons(active, supported).items()
    ]


def _throttle_time(policy: str) -> Call:
    def read(nvml: ModuleType, gpu: Handle) -> list[Said]:
        time_ns = nvml.nvmlDeviceGetViolationStatus(gpu, POLICIES[policy]).violationTime
        return [(names.THROTTLE_TIME, {names.THROTTLE_REASON: policy}, time_ns / 1e9)]

    return Call(f"throttle time of {policy}", "detailed", read)


def _performance_state(nvml: ModuleType, gpu: Handle) -> list[Said]:
    state = nvml.nvmlDeviceGetPerformanceState(gpu)
    return [] if state == PSTATE_UNKNOWN else [(names.PERFORMANCE_STATE, {}, state)]


def _number(name: str, function: str, metric: Metric, *, seldom: bool = False) -> Call:
    def read(nvml: ModuleType, gpu: Handle) -> list[Said]:
        return [(metric, {}, getattr(nvml, function)(gpu))]

    return Call(name, "detailed", read, seldom)


def _links(nvml: ModuleType, gpu: Handle) -> list[Said]:
    states = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(nvml.nvmlDeviceGetNvLinkState(gpu, link))
        except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported):
            # The first missing link ends the list; if it is link 0, the GPU has no NVLink.
            if link == 0:
                raise
            break
    return [(names.NVLINK_ACTIVE, {}, sum(states))]


def _pcie(direction: str, number: int) -> FieldValue:
    labels = {names.NETWORK_DIRECTION: direction, names.ACCELERATOR_LINK: "pcie"}
    return FieldValue(f"PCIe {direction}", "detailed", number, names.GPU_IO, labels)


def _nvlink(direction: str, number: int) -> FieldValue:
    labels = {names.NETWORK_DIRECTION: direction, names.ACCELERATOR_LINK: "nvlink"}
    # NVML counts KiB for NVLink, but bytes for PCIe.
    return FieldValue(
        f"NVLink {direction}", "detailed", number, names.GPU_IO, labels, 1 / 1024, ALL_LINKS
    )


def _errors(kind: str, level: Level, number: int) -> FieldValue:
    return FieldValue(
        f"errors: {kind}", level, number, names.HW_ERRORS, GPU | {names.ERROR_TYPE: kind}
    )


def _repairs(metric: Metric, item: str, kind: str, number: int) -> FieldValue:
    return FieldValue(f"{item} ({kind})", "detailed", number, metric, {names.ERROR_TYPE: kind})


def _pending(item: str, number: int) -> FieldValue:
    labels = {names.REPAIR_TYPE: item}
    return FieldValue(f"{item} to repair", "detailed", number, names.REPAIR_PENDING, labels)


CALLS: Final = (
    Call("utilization", "basic", _utilization),
    Call("memory", "basic", read_memory),
    Call("power", "basic", _power),
    Call("power limit", "basic", _power_limit, seldom=True),
    Call("temperature", "basic", _temperature),
    *_clock(1, "sm"),
    *_clock(2, "memory"),
    Call("throttle reasons", "basic", _throttle),
    Call("encoder", "detailed", _encoder),
    Call("decoder", "detailed", _decoder),
    Call("temperature margin", "basic", _margin),
    _threshold(0, "critical", "gpu"),
    _threshold(1, "throttled", "gpu"),
    _threshold(3, "max", "gpu"),
    _threshold(2, "max", "memory"),
    *(_throttle_time(policy) for policy in POLICIES),
    Call("performance state", "detailed", _performance_state),
    _number("PCIe generation", "nvmlDeviceGetCurrPcieLinkGeneration", names.PCIE_GENERATION),
    _number("PCIe width", "nvmlDeviceGetCurrPcieLinkWidth", names.PCIE_WIDTH),
    _number(
        "PCIe generation limit",
        "nvmlDeviceGetMaxPcieLinkGeneration",
        names.PCIE_GENERATION_LIMIT,
        seldom=True,
    ),
    _number(
        "PCIe width limit", "nvmlDeviceGetMaxPcieLinkWidth", names.PCIE_WIDTH_LIMIT, seldom=True
    ),
    Call("NVLinks", "detailed", _links, seldom=True),
)

VALUES: Final = (
    FieldValue("energy", "basic", 83, names.HW_ENERGY, GPU, 1e3),
    _errors("corrected", "basic", 3),
    _errors("uncorrected", "basic", 4),
    FieldValue(
        "memory temperature",
        "detailed",
        82,
        names.HW_TEMPERATURE,
        {names.HW_SENSOR_LOCATION: "memory"},
    ),
    _pcie("transmit", 197),
    _pcie("receive", 198),
    _nvlink("transmit", 138),
    _nvlink("receive", 139),
    _repairs(names.PAGES_RETIRED, "retired pages", "corrected", 29),
    _repairs(names.PAGES_RETIRED, "retired pages", "uncorrected", 30),
    _pending("pages", 31),
    _repairs(names.ROWS_REMAPPED, "remapped rows", "corrected", 142),
    _repairs(names.ROWS_REMAPPED, "remapped rows", "uncorrected", 143),
    _pending("rows", 144),
    FieldValue("failed repairs", "detailed", 145, names.REPAIR_FAILED, {}),
    _errors("pcie_replay", "comprehensive", 94),
    _errors("nvlink_crc_flit", "comprehensive", 38),
    _errors("nvlink_crc_data", "comprehensive", 45),
)
