"""Memory and swap of the host, from psutil."""

from __future__ import annotations

from typing import Any

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Level, Measurement, includes
from otel_mlperf.sensors.psutil_calls import read_psutil


def by_state(memory: Any) -> dict[str, int]:
    """Return the bytes by state of psutil's ``virtual_memory``; they sum to its total.

    used = total - free - buffers - cached; cached = page cache + slabs that can be reclaimed,
    shared memory and tmpfs included. psutil's own ``used`` is different since version 7: total -
    available. A system without buffers, such as macOS, uses that, and free = available. Empty if
    the states overlap: the kernel reads its counters one after another.
    """
    if not hasattr(memory, "buffers"):
        return {"used": memory.total - memory.available, "free": memory.available}
    used = memory.total - memory.free - memory.buffers - memory.cached
    states = {"used": used, "free": memory.free}
    states |= {"buffers": memory.buffers, "cached": memory.cached}
    return states if used >= 0 else {}


def read_memory(level: Level) -> list[Measurement]:
    """Return memory and, from level ``detailed`` upward, swap and shared memory."""
    is_detailed, memory = includes(level, "detailed"), read_psutil("virtual_memory")
    measured = _swap() if is_detailed else []
    if memory is None:
        return measured
    states, label = by_state(memory), names.MEMORY_STATE
    measured += [
        Measurement(names.SYSTEM_MEMORY.name, {label: state}, size)
        for state, size in states.items()
    ]
    measured += [
        Measurement(names.SYSTEM_MEMORY_LIMIT.name, {}, memory.total),
        Measurement(names.SYSTEM_MEMORY_AVAILABLE.name, {}, memory.available),
    ]
    if is_detailed and hasattr(memory, "shared"):
        measured.append(Measurement(names.SYSTEM_MEMORY_SHARED.name, {}, memory.shared))
    if states:
        share = states["used"] / memory.total
        measured.append(Measurement(names.SYSTEM_MEMORY_UTILIZATION.name, {label: "used"}, share))
    return measured


def _swap() -> list[Measurement]:
    swap = read_psutil("swap_memory")
    if swap is None:
        return []
    used, free = {names.PAGING_STATE: "used"}, {names.PAGING_STATE: "free"}
    measured = [
        Measurement(names.PAGING_USAGE.name, used, swap.used),
        Measurement(names.PAGING_USAGE.name, free, swap.free),
    ]
    if swap.total:
        measured.append(Measurement(names.PAGING_UTILIZATION.name, used, swap.used / swap.total))
    return measured
