"""Timelines of the memory of each device's allocator during a profiler window.

They are derived from the ``[memory]`` instants. *Allocated* and *reserved* are the allocator's own
totals after each change. Traces of the CPU often lack these totals: then the timeline contains only
the change since the start of the window, ``change = bytes allocated - bytes freed``. The change is
negative if more memory was freed than allocated, because memory that was allocated before the
window may be freed inside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.tables.window_tables import AllocatorRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace

MAX_POINTS: Final = 512


def follow_memory(trace: Trace) -> list[AllocatorRow]:
    """Return the points of each allocator's timeline, allocator by allocator.

    The list is empty if the trace contains no allocations.
    """
    made = trace.allocations
    keys = np.unique(np.stack([made.device_type, made.device]), axis=1).T.tolist()
    return [
        row
        for kind, device in keys
        for row in _follow(
            trace, kind, device, (made.device_type == kind) & (made.device == device)
        )
    ]


def _follow(
    trace: Trace, device_type: int, device: int, mine: NDArray[np.bool_]
) -> Iterator[AllocatorRow]:
    made = trace.allocations
    rows = np.flatnonzero(mine)
    rows = rows[np.argsort(made.time_ns[rows], kind="stable")]
    time_ns, allocated = made.time_ns[rows], made.allocated[rows]
    first, last = _parts(time_ns)
    columns = (
        time_ns[last],
        allocated[last],
        np.maximum.reduceat(allocated, first),
        np.maximum.reduceat(made.reserved[rows], first),
        np.cumsum(made.size[rows])[last],
    )
    for at_ns, now, peak, reserved, change in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        yield AllocatorRow(
            device_type=device_type,
            device=device,
            time_ns=at_ns,
            allocated_bytes=None if now == NONE else now,
            peak_bytes=None if peak == NONE else peak,
            reserved_bytes=None if reserved == NONE else reserved,
            change_bytes=change,
        )


def _parts(time_ns: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of the first and the last change of each part of a timeline.

    Each of up to ``MAX_POINTS`` changes is a part of its own. More changes are divided into at most
    ``MAX_POINTS`` parts of equal duration, because a point is stored for each part.
    """
    n = len(time_ns)
    if n <= MAX_POINTS:
        return np.arange(n), np.arange(n)
    # Each part reports its last value and its peak, so that merging changes loses no peak.
    span = int(time_ns[-1] - time_ns[0]) + 1
    part = (time_ns - time_ns[0]) // -(-span // MAX_POINTS)
    first = np.flatnonzero(np.diff(part, prepend=-1))
    return first, np.append(first[1:], n) - 1
