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
    """Memory of the process that is in RAM; 0 where the kernel does not say."""
    return Counters().resident_bytes() or 0


class WindowGrowth:
    """Memory that windows have taken for good; what the first one took serves the next ones too."""

    bytes = 0
    windows = 0

    @classmethod
    def add(cls, grown: int) -> None:
        """A window has ended, after which the process is so much larger."""
        cls.windows += 1
        if cls.windows > 1:
            cls.bytes += grown


class Heap:
    """By how much the heap has grown since this was made."""

    def __init__(self) -> None:
        self._read, self._bits = _detect_account()
        self._start = self._read()

    def growth_bytes(self) -> int:
        """Bytes in use beyond those at the start; 0 where malloc keeps no account, or it shrank."""
        # The narrow account begins again at 0 after 4 GiB; more than half of that is a loss.
        grown = (self._read() - self._start) % (1 << self._bits)
        return 0 if grown >> (self._bits - 1) else grown

    def events(self, schedule: Schedule) -> int:
        """About how many events a profiler has recorded meanwhile."""
        return self.growth_bytes() // event_bytes(schedule)


def event_bytes(schedule: Schedule) -> int:
    """Heap that one event takes."""
    if schedule.with_stack or schedule.profile_memory:
        return _SMALL_BYTES
    return _SHAPES_BYTES if schedule.record_shapes else _PLAIN_BYTES


def _detect_account() -> tuple[Callable[[], int], int]:
    """What reads malloc's account, and how many bits it has before it starts again at 0."""
    library = ctypes.CDLL(None)
    for name, kind, bits in (("mallinfo2", _Wide, 64), ("mallinfo", _Narrow, 32)):
        function = getattr(library, name, None)
        if function is not None:
            function.restype = kind
            return functools.partial(_in_use, function), bits
    return lambda: 0, 64


def _in_use(ask: Callable[[], Any]) -> int:
    account = ask()
    # What malloc has given away of its arenas, and what it mapped for large pieces alone.
    return int(account.uordblks + account.hblkhd)
