"""Memory of the process, and the estimated number of events of a running profiler.

torch reports nothing about a profiler's events before it has stopped. They are allocated on the
heap, and between two steps of a training nothing else grows there. So malloc's own account,
divided by the measured size of an event, gives their number to within a factor of two. An event
was measured to take 220 bytes; shapes double that, stacks and allocations add many small ones.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.recorder.core.used_so_far import Counters

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.profile_schedule import Schedule

_FIELDS: Final = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                  "uordblks", "fordblks", "keepcost")  # fmt: skip
_PLAIN_BYTES: Final = 220
_SHAPES_BYTES: Final = 475
_SMALL_BYTES: Final = 150


class _Wide(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


class _Narrow(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in _FIELDS]


def resident_bytes() -> int:
    """Return the resident memory of the process in bytes; 0 if the kernel does not report it."""
    return Counters().resident_bytes() or 0


class WindowGrowth:
    """Memory permanently taken by windows; the memory of the first one is reused by later ones."""

    bytes = 0
    windows = 0

    @classmethod
    def add(cls, grown: int) -> None:
        """Add the growth of the process after the end of a window."""
        cls.windows += 1
        if cls.windows > 1:
            cls.bytes += grown


class Heap:
    """Growth of the heap since construction."""

    def __init__(self) -> None:
        self._read, self._bits = _detect_account()
        self._start = self._read()

    def growth_bytes(self) -> int:
        """Return the growth of bytes in use; 0 if malloc has no account, or the heap shrank."""
        # The narrow account wraps to 0 after 4 GiB; growth of more than half of that is a
        # decrease.
        grown = (self._read() - self._start) % (1 << self._bits)
        return 0 if grown >> (self._bits - 1) else grown

    def events(self, schedule: Schedule) -> int:
        """Estimate the number of events that a profiler has recorded since construction."""
        return self.growth_bytes() // event_bytes(schedule)


def event_bytes(schedule: Schedule) -> int:
    """Return the heap bytes that one event takes."""
    if schedule.with_stack or schedule.profile_memory:
        return _SMALL_BYTES
    return _SHAPES_BYTES if schedule.record_shapes else _PLAIN_BYTES


def _detect_account() -> tuple[Callable[[], int], int]:
    """Return the reader of malloc's account, and its number of bits before it wraps to 0."""
    library = ctypes.CDLL(None)
    for name, kind, bits in (("mallinfo2", _Wide, 64), ("mallinfo", _Narrow, 32)):
        function = getattr(library, name, None)
        if function is not None:
            function.restype = kind
            return functools.partial(_in_use, function), bits
    return lambda: 0, 64


def _in_use(ask: Callable[[], Any]) -> int:
    account = ask()
    # Bytes allocated from malloc's arenas, and mappings of large blocks.
    return int(account.uordblks + account.hblkhd)
