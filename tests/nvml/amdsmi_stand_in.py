"""What does ``amdsmi`` look like to who reads it?

Copied as ``amdsmi.py`` to where a test looks for modules. Two GPUs; what ``REFUSED`` names fails,
and what ``CHANGED`` names answers as another version might.
"""

from __future__ import annotations

from enum import Enum


class AmdSmiException(Exception):
    pass


class AmdSmiMemoryType(Enum):
    VRAM = 0


class AmdSmiTemperatureType(Enum):
    HOTSPOT = 1
    VRAM = 3


class AmdSmiTemperatureMetric(Enum):
    CURRENT = 0
    CRITICAL = 5
    EMERGENCY = 7


class AmdSmiClkType(Enum):
    GFX = 0
    MEM = 4


REFUSED: set[str] = set()
CHANGED: set[str] = set()
CALLS: list[str] = []


def asked(name):
    CALLS.append(name)
    if name in REFUSED:
        raise AmdSmiException(f"{name} is not supported")


def amdsmi_init():
    asked("init")


def amdsmi_shut_down():
    asked("shut_down")


def amdsmi_get_processor_handles():
    return [0, 1]


def amdsmi_get_gpu_device_uuid(gpu):
    return f"uuid-{gpu}"


def amdsmi_get_gpu_asic_info(_):
    return {"market_name": "AMD Instinct MI300X"}


def amdsmi_get_gpu_activity(gpu):
    asked("activity")
    if "activity" in CHANGED:
        return {"gfx": 40}
    return {"gfx_activity": 40 + gpu, "umc_activity": 12, "mm_activity": "N/A"}


def amdsmi_get_gpu_memory_usage(_, kind):
    assert kind is AmdSmiMemoryType.VRAM
    return 48 << 30


def amdsmi_get_gpu_memory_total(_, kind):
    assert kind is AmdSmiMemoryType.VRAM
    return 192 << 30


def amdsmi_get_power_info(gpu):
    return (
        {"current_socket_power": 500, "average_socket_power": "N/A"}
        if gpu
        else {
            "current_socket_power": "N/A",
            "average_socket_power": 450,
        }
    )


def amdsmi_get_energy_count(_):
    return {"energy_accumulator": 1_000_000, "counter_resolution": 15.25, "timestamp": 1}


def amdsmi_get_temp_metric(_, sensor, metric):
    asked("temperature")
    return {
        ("HOTSPOT", "CURRENT"): 66,
        ("VRAM", "CURRENT"): 55,
        ("HOTSPOT", "CRITICAL"): 100,
        ("HOTSPOT", "EMERGENCY"): 105,
    }[sensor.name, metric.name]


def amdsmi_get_clock_info(_, kind):
    return {"clk": 2100, "max_clk": 2100} if kind.name == "GFX" else {"clk": 1300, "max_clk": "N/A"}


def amdsmi_get_gpu_total_ecc_count(_):
    return {"correctable_count": 3, "uncorrectable_count": 0, "deferred_count": 0}


def amdsmi_get_pcie_info(_):
    return {"pcie_metric": {"pcie_width": 16}, "pcie_static": {"max_pcie_width": 16}}


def amdsmi_get_gpu_process_list(gpu):
    uses = [
        {"pid": 4711, "memory_usage": {"vram_mem": 7}},
        {"pid": 5, "memory_usage": {"vram_mem": 9}},
    ]
    return [] if gpu else uses
