"""How much memory and swap does the host have, and what is it used for?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import KeptFile, field, kibibytes
from otel_mlperf.sensors.measurement import Level, Measurement, includes

if TYPE_CHECKING:
    from pathlib import Path

_USED: Final = "used"
_FREE: Final = "free"


def parse_memory(text: bytes) -> dict[str, int]:
    """Bytes by state of ``/proc/meminfo``; they add up to its total. Empty if one is missing.

    used = total - free - buffers - cached; cached = page cache + slabs that can be reclaimed,
    shared memory and tmpfs included.
    """
    total, free = kibibytes(text, b"MemTotal:"), kibibytes(text, b"MemFree:")
    buffers, cache = kibibytes(text, b"Buffers:"), kibibytes(text, b"Cached:")
    if total is None or free is None or buffers is None or cache is None:
        return {}
    cached = cache + (kibibytes(text, b"SReclaimable:") or 0)
    used = total - free - buffers - cached
    # The kernel takes its counts one after another: in between they may overlap.
    if used < 0:
        return {}
    return {_USED: used, _FREE: free, "buffers": buffers, "cached": cached}


class MemorySensor:
    """Memory and, from level ``detailed`` on, paging of the host."""

    def __init__(self, level: Level, proc: Path) -> None:
        self._level = level
        self._meminfo = KeptFile(proc / "meminfo", may_lack=False)
        self._vmstat = KeptFile(proc / "vmstat", may_lack=False)

    def read(self) -> list[Measurement]:
        """What the kernel counts now."""
        text = self._meminfo.read()
        measured = self._memory(text)
        if includes(self._level, "detailed"):
            measured += _swap(text) + _paging(self._vmstat.read())
        return measured

    def _memory(self, text: bytes) -> list[Measurement]:
        states = parse_memory(text)
        measured = [
            Measurement(names.SYSTEM_MEMORY.name, {names.MEMORY_STATE: state}, size)
            for state, size in states.items()
        ]
        wanted = [
            (names.SYSTEM_MEMORY_LIMIT, b"MemTotal:"),
            (names.SYSTEM_MEMORY_AVAILABLE, b"MemAvailable:"),
        ]
        if includes(self._level, "detailed"):
            wanted.append((names.SYSTEM_MEMORY_SHARED, b"Shmem:"))
        for metric, key in wanted:
            size = kibibytes(text, key)
            if size is not None:
                measured.append(Measurement(metric.name, {}, size))
        total = sum(states.values())
        if total:
            labels = {names.MEMORY_STATE: _USED}
            share = states[_USED] / total
            measured.append(Measurement(names.SYSTEM_MEMORY_UTILIZATION.name, labels, share))
        return measured

    def close(self) -> None:
        """Closes its files."""
        self._meminfo.close()
        self._vmstat.close()


def _swap(text: bytes) -> list[Measurement]:
    total, free = kibibytes(text, b"SwapTotal:"), kibibytes(text, b"SwapFree:")
    if total is None or free is None or free > total:
        return []
    used = {names.PAGING_STATE: _USED}
    measured = [
        Measurement(names.PAGING_USAGE.name, used, total - free),
        Measurement(names.PAGING_USAGE.name, {names.PAGING_STATE: _FREE}, free),
    ]
    if total:
        share = (total - free) / total
        measured.append(Measurement(names.PAGING_UTILIZATION.name, used, share))
    return measured


def _paging(text: bytes) -> list[Measurement]:
    measured = []
    faults, major = field(text, b"pgfault "), field(text, b"pgmajfault ")
    if faults is not None and major is not None:
        # pgfault counts the major ones too.
        for kind, count in (("minor", max(0, faults - major)), ("major", major)):
            labels = {names.PAGING_FAULT: kind}
            measured.append(Measurement(names.PAGING_FAULTS.name, labels, count))
    for direction, key in (("in", b"pswpin "), ("out", b"pswpout ")):
        count_ = field(text, key)
        if count_ is not None:
            labels = {names.PAGING_DIRECTION: direction}
            measured.append(Measurement(names.PAGING_OPERATIONS.name, labels, count_))
    return measured
