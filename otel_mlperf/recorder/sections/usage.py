"""Measurement of a section's resource usage.

CPU time, context switches and I/O bytes are those of the section's thread. They are unknown if the
section ended in another thread, or if other tasks ran in its thread. Memory is that of the process,
including the activity of other threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.core.turns import current_turn, is_same_turn

if TYPE_CHECKING:
    from otel_mlperf.recorder.core.used_so_far import Counters, OfDevice, OfProcess, UsedSoFar

Figures = list["int | None"]
"""One value for each of ``names.MEASURES``, in their order; None: unknown."""
_UNKNOWN = (None,) * 5


class Usage:
    """Resource usage between the construction of the object and ``end()``."""

    __slots__ = ("_before", "_counters", "_ident", "figures", "turn")

    def __init__(self, counters: Counters) -> None:
        self.figures: Figures | None = None
        """Measured values; None before ``end()``, empty if reading the counters failed."""
        self.turn = current_turn()
        """Event-loop turn of the start; set to ``MANY`` if other tasks ran in the thread."""
        self._counters, self._ident = counters, get_ident()
        # Last: the section's usage must not include the cost of this constructor.
        self._before: UsedSoFar = counters.before()

    def end(self) -> None:
        """Compute the usage; idempotent."""
        if self.figures is not None:
            return
        try:
            before = self._before
            device = before.process.device
            after = self._counters.after(device.device if device else None)
            same = self._ident == get_ident() and is_same_turn(self.turn, current_turn())
            self.figures = [
                *map(_grown, before.of_thread if same else _UNKNOWN, after.of_thread),
                *_of_process(before.process, after.process),
                *_of_device(device, after.process.device),
            ]
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            self.figures = []

    def limit_cpu(self, duration_ns: int) -> None:
        """Limit the CPU time to the section's duration, the maximum that one thread can use.

        The counters are read outside the section. Without the limit, the CPU time of a section of a
        microsecond would include the cost of reading them and of opening the section.
        """
        if self.figures and self.figures[0] is not None:
            self.figures[0] = min(self.figures[0], duration_ns)


def _grown(before: Any, after: Any) -> int | None:
    return None if before is None or after is None else after - before


def _of_process(before: OfProcess, after: OfProcess) -> Figures:
    # The kernel's value is the lifetime peak: it is the section's peak only if it rose during the
    # section.
    peak = after.peak_bytes if after.peak_bytes > before.peak_bytes else None
    first, last = before.resident_bytes, after.resident_bytes
    return [first, last, _grown(first, last), peak]


def _of_device(before: OfDevice | None, after: OfDevice | None) -> Figures:
    if after is None:
        return [None, None]
    # No earlier reading: the section started before CUDA was initialised, with no memory allocated.
    allocated, highest = (before.allocated_bytes, before.peak_bytes) if before else (0, 0)
    return [
        after.allocated_bytes - allocated,
        after.peak_bytes if after.peak_bytes > highest else None,
    ]
