"""Why are a GPU's clocks held down?

The names are those that ``nvidia-smi`` prints for ``clocks_event_reasons``.
"""

from __future__ import annotations

from typing import Final

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
"""By the bit of NVML's mask."""

ALL: Final = sum(REASONS)
OTHER: Final = "other"
"""A bit that is newer than this list."""

POLICIES: Final = {
    "power": 0,
    "thermal": 1,
    "sync_boost": 2,
    "board_limit": 3,
    "low_utilization": 4,
    "reliability": 5,
}
"""What NVML counts the time of, and its number of each."""


def find_reasons(active: int, supported: int = ALL) -> dict[str, bool]:
    """Which of the reasons that the device knows hold now; unknown ones only while they hold."""
    reasons = {
        name: bool(active & bit) for bit, name in REASONS.items() if (active | supported) & bit
    }
    if active & ~ALL:
        reasons[OTHER] = True
    return reasons
