"""Limits and use of a control group. Own code: psutil does not read control groups.

Versions 1 and 2 of control groups report the same in different files, words and units: microseconds
in place of nanoseconds, ``max`` in place of ``-1`` or a number beyond all memory.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf.sensors.kernel_files import KeptFile, field, number

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.sensors.cgroups.membership import Chain

_MICRO: Final = 1e6
_NANO: Final = 1e9
_MAX_CPUS: Final = 1 << 16
"""Larger than the limit of any kernel."""


class CpuReading(NamedTuple):
    """Reading of the group with the tightest CPU quota; None: not reported."""

    limit_cpus: float | None = None
    cpu_s: float | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_s: float | None = None


def parse_cpu_list(text: bytes) -> list[int]:
    """Return the numbers in a list of CPUs such as ``0-3,8``; empty for any other text."""
    cpus: list[int] = []
    for part in text.strip().split(b","):
        first, dash, last = part.partition(b"-")
        low, high = number(first), number(last if dash else first)
        if low is None or high is None or not low <= high < _MAX_CPUS:
            return []
        cpus += range(low, high + 1)
    return cpus


def parse_quota(quota_and_period: bytes) -> float | None:
    """Return the CPUs of a quota: quota / period. None: no limit (``max``; ``-1`` in version 1)."""
    words = quota_and_period.split()
    if len(words) != 2:
        return None
    quota, period = number(words[0]), number(words[1])
    return quota / period if quota and period else None


def parse_throttling(text: bytes) -> CpuReading:
    """Parse ``cpu.stat``; microseconds in version 2, nanoseconds in version 1."""
    micro, nano = field(text, b"throttled_usec "), field(text, b"throttled_time ")
    return CpuReading(
        cpu_s=_seconds(field(text, b"usage_usec "), _MICRO),
        periods=field(text, b"nr_periods "),
        throttled_periods=field(text, b"nr_throttled "),
        throttled_s=_seconds(nano, _NANO) if micro is None else _seconds(micro, _MICRO),
    )


def _seconds(count: int | None, in_a_second: float) -> float | None:
    return None if count is None else count / in_a_second


class CpuGroup:
    """CPU quotas of a group and of those above it."""

    def __init__(self, groups: Chain, times: Chain | None) -> None:
        """``times``: the groups in which version 1 counts CPU time, separate from the quotas."""
        limits = ["cpu.max"] if groups.version == 2 else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        self._limits = [[KeptFile(at / name) for name in limits] for at in groups.folders]
        self._stats = [KeptFile(at / "cpu.stat") for at in groups.folders]
        self._times = _usage_files(times)

    def read(self) -> CpuReading:
        """Read the group with the tightest quota; the innermost if none has one."""
        tightest, limit = 0, None
        for at, files in enumerate(self._limits):
            cpus = parse_quota(b" ".join(file.read() for file in files))
            # "<", not "<=": of groups with the same quota the innermost is the process's own.
            if cpus is not None and (limit is None or cpus < limit):
                tightest, limit = at, cpus
        reading = parse_throttling(self._stats[tightest].read())._replace(limit_cpus=limit)
        # In version 1 the two may be in trees of different depth: then the indices do not match.
        if reading.cpu_s is None and len(self._times) == len(self._stats):
            used = number(self._times[tightest].read().strip())
            reading = reading._replace(cpu_s=_seconds(used, _NANO))
        return reading

    def close(self) -> None:
        """Close its files."""
        for file in chain.from_iterable((*self._limits, self._stats, self._times)):
            file.close()


def _usage_files(times: Chain | None) -> list[KeptFile]:
    folders: tuple[Path, ...] = times.folders if times and times.version == 1 else ()
    return [KeptFile(folder / "cpuacct.usage") for folder in folders]


_UNLIMITED: Final = 1 << 62
"""Version 1 writes the largest number of whole pages if there is no limit."""
_FILES: Final = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes",
        "memory.oom_control", b"total_inactive_file "),
    2: ("memory.max", "memory.current", "memory.peak", "memory.events", b"inactive_file "),
}  # fmt: skip


class MemoryReading(NamedTuple):
    """Reading of the group with the lowest memory limit; None: not reported."""

    limit_bytes: int | None = None
    usage_bytes: int | None = None
    working_set_bytes: int | None = None
    """usage - file pages that have not been used for long (as Kubernetes counts it)."""
    peak_bytes: int | None = None
    oom_kills: int | None = None


def parse_limit(text: bytes) -> int | None:
    """Parse a limit in bytes; None: no limit."""
    limit = number(text.strip())
    return None if limit is None or limit >= _UNLIMITED else limit


class MemoryGroup:
    """Memory limits of a group and of those above it."""

    def __init__(self, groups: Chain) -> None:
        limit, usage, peak, events, self._inactive = _FILES[groups.version]
        self._limits = [KeptFile(folder / limit) for folder in groups.folders]
        self._files = [
            tuple(KeptFile(folder / name) for name in (usage, "memory.stat", peak, events))
            for folder in groups.folders
        ]

    def read(self) -> MemoryReading:
        """Read the group with the lowest limit; the innermost if none has one."""
        lowest, limit = 0, None
        for at, file in enumerate(self._limits):
            size = parse_limit(file.read())
            if size is not None and (limit is None or size < limit):
                lowest, limit = at, size
        usage, stat, peak, events = (file.read() for file in self._files[lowest])
        # Read one after the other. Pages may move in between, and the difference may be negative.
        used, inactive = number(usage.strip()), field(stat, self._inactive)
        working = None if used is None or inactive is None else max(0, used - inactive)
        kills = field(events, b"oom_kill ")
        return MemoryReading(limit, used, working, number(peak.strip()), kills)

    def close(self) -> None:
        """Close its files."""
        for file in chain.from_iterable((self._limits, *self._files)):
            file.close()
