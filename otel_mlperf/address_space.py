"""Address space limits (RLIMIT_AS, ``ulimit -v``): whether a process may map what it loads.

Libraries map far more than they use, and some end the process without a message where they may not.
A limit is mostly set for the program that is recorded. The processes that we start next to it raise
their own limit, as far as they may, and check whether it is enough. The program keeps its limit. In
portable mode no limit is known: macOS enforces none, Windows has none.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from otel_mlperf.portability import IS_PORTABLE

with suppress(ImportError):  # Windows
    import resource
AGENT_BYTES: Final = 350 << 20
"""Address space that an agent maps in total: with 300 MiB it could not start its threads."""
TABLES_BYTES: Final = 768 << 20
"""Address space that DuckDB maps, for two cores: 740 MiB."""
_UNLIMITED: Final = 1 << 64


def lift_limit() -> None:
    """Raise the limit of this process as far as its parent could permit."""
    if not IS_PORTABLE:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def room_of_next() -> int:
    """Return the bytes that a child process may map, which raises its own limit."""
    return _UNLIMITED if IS_PORTABLE else _bytes(resource.getrlimit(resource.RLIMIT_AS)[1])


def room_here() -> int:
    """Return the bytes that this process may still map."""
    if IS_PORTABLE:
        return _UNLIMITED
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    return max(0, _bytes(resource.getrlimit(resource.RLIMIT_AS)[0]) - used)


def shortage(room_bytes: int, needed_bytes: int) -> str:
    """Return a message if there is too little room; empty if there is enough."""
    if room_bytes >= needed_bytes:
        return ""
    return (
        f"{room_bytes >> 20} MiB of addresses may be mapped, {needed_bytes >> 20} are needed: "
        "raise RLIMIT_AS with ulimit -H -v"
    )


def _bytes(limit: int) -> int:
    return _UNLIMITED if limit == resource.RLIM_INFINITY else limit
