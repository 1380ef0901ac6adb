"""How much memory may a control group use, and how much does it?"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf.sensors.kernel_files import KeptFile, field, number

if TYPE_CHECKING:
    from otel_mlperf.sensors.cgroups.membership import Chain

_UNLIMITED: Final = 1 << 62
"""Version 1 writes the largest number of whole pages where there is no limit."""
_FILES: Final = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.max_usage_in_bytes",
        "memory.oom_control", b"total_inactive_file "),
    2: ("memory.max", "memory.current", "memory.peak", "memory.events", b"inactive_file "),
}  # fmt: skip


class MemoryReading(NamedTuple):
    """What the kernel says of the group whose limit is lowest; None: it does not say."""

    limit_bytes: int | None = None
    usage_bytes: int | None = None
    working_set_bytes: int | None = None
    """usage - file pages that have not been used for long (as Kubernetes counts it)."""
    peak_bytes: int | None = None
    oom_kills: int | None = None


def parse_limit(text: bytes) -> int | None:
    """Bytes; None: no limit."""
    limit = number(text.strip())
    return None if limit is None or limit >= _UNLIMITED else limit


class MemoryGroup:
    """The memory limits of a group and of those above it."""

    def __init__(self, groups: Chain) -> None:
        limit, usage, peak, events, self._inactive = _FILES[groups.version]
        self._limits = [KeptFile(folder / limit) for folder in groups.folders]
        self._files = [
            tuple(KeptFile(folder / name) for name in (usage, "memory.stat", peak, events))
            for folder in groups.folders
        ]

    def read(self) -> MemoryReading:
        """Of the group whose limit is lowest; of the innermost if none has one."""
        lowest, limit = 0, None
        for at, file in enumerate(self._limits):
            found = parse_limit(file.read())
            if found is not None and (limit is None or found < limit):
                lowest, limit = at, found
        usage, stat, peak, events = (file.read() for file in self._files[lowest])
        used, inactive = number(usage.strip()), field(stat, self._inactive)
        working = None if used is None or inactive is None else max(0, used - inactive)
        kills = field(events, b"oom_kill ")
        return MemoryReading(limit, used, working, number(peak.strip()), kills)

    def close(self) -> None:
        """Closes its files."""
        for file in chain.from_iterable((self._limits, *self._files)):
            file.close()
