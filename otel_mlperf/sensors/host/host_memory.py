"""Memory and swap of the host, from psutil."""

from __future__ import annotations

from typing import Any, Final

from otel_mlperf import names
from otel_mlperf.sensors.measurement import Level, Measurement, includes
from otel_mlperf.sensors.psutil_calls import read_psutil

_USED: Final = "used"
_FREE: Final = "free"


def by_state(memory: Any) -> dict[str, int]:
    """Return the bytes by state of psutil's ``virtual_memory``; they sum to its total.

    used = total - free - buffers - cached; cached = page cache + slabs that can be reclaimed,
    shared memory and tmpfs included. psutil's own ``used`` is another one since version 7:
    total - available. A system that has no buffers, such as macOS, has that, and free = available.
    Empty if the states overlap: the kernel takes its counts one after another.
    """
    if not hasattr(memory, "buffers"):
        return {_USED: memory.total - memory.available, _FREE: memory.available}
    used = memory.total - memory.free - memory.buffers - memory.cached
    if used < 0:
        return {}
    return {
        _USED: used,
        _FREE: memory.free,
        "buffers": memory.buffers,
        "cached": memory.cached,
    }


class MemorySensor:
    """Memory and, from level ``detailed`` on, swap and shared memory of the host."""

    def __init__(self, level: Level) -> None:
        self._is_detailed = includes(level, "detailed")

    def read(self) -> list[Measurement]:
        """Return what the kernel counts now."""
        memory = read_psutil("virtual_memory")
        measured = [] if memory is None else self._memory(memory)
        if self._is_detailed:
            measured += _swap()
        return measured

    def _memory(self, memory: Any) -> list[Measurement]:
        states = by_state(memory)
        measured = [
            Measurement(names.SYSTEM_MEMORY.name, {names.MEMORY_STATE: state}, size)
            for state, size in states.items()
        ]
        measured += [
            Measurement(names.SYSTEM_MEMORY_LIMIT.name, {}, memory.total),
            Measurement(names.SYSTEM_MEMORY_AVAILABLE.name, {}, memory.available),
        ]
        if self._is_detailed and hasattr(memory, "shared"):
            measured.append(Measurement(names.SYSTEM_MEMORY_SHARED.name, {}, memory.shared))
        if states:
            share, labels = states[_USED] / memory.total, {names.MEMORY_STATE: _USED}
            measured.append(Measurement(names.SYSTEM_MEMORY_UTILIZATION.name, labels, share))
        return measured

    def close(self) -> None:
        """Nothing is open."""


def _swap() -> list[Measurement]:
    swap = read_psutil("swap_memory")
    if swap is None:
        return []
    used = {names.PAGING_STATE: _USED}
    measured = [
        Measurement(names.PAGING_USAGE.name, used, swap.used),
        Measurement(names.PAGING_USAGE.name, {names.PAGING_STATE: _FREE}, swap.free),
    ]
    if swap.total:
        measured.append(Measurement(names.PAGING_UTILIZATION.name, used, swap.used / swap.total))
    return measured
