"""Timelines of the memory that the allocator of each device allocated during a window.

They are derived from the ``[memory]`` instants. *Allocated* and *reserved* are the allocator's own
totals after each change. Traces of the CPU often lack these totals; then only the change since the
window started is known: ``change = bytes allocated - bytes freed``. Memory that was allocated
before the window and freed inside it counts as freed, so a change may be negative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace

MOST_POINTS: Final = 512


class Memory(NamedTuple):
    """Changes of one device's allocator; the arrays are its timeline, one item for each part."""

    device_type: int
    """Device type as ``c10::DeviceType``: 0 CPU, 1 CUDA."""
    device: int
    allocations: int
    frees: int
    allocated_bytes: int
    """Sum over the allocations of the window."""
    freed_bytes: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_change_bytes: int
    """Maximum of the bytes allocated since the window started, less the bytes freed."""
    peak_ns: int
    """Time at which the most was allocated, by the allocator's own total or else by the change."""
    time_ns: NDArray[np.int64]
    """Time of the last change in each part of the timeline."""
    allocated: NDArray[np.int64]
    """Allocated bytes after that change; NONE if the trace does not record them."""
    peak: NDArray[np.int64]
    """Peak of the allocated bytes in that part; NONE if the trace does not record them."""
    reserved: NDArray[np.int64]
    """Peak of the reserved bytes in that part; NONE if the trace does not record them."""
    change: NDArray[np.int64]


def follow_memory(trace: Trace) -> list[Memory]:
    """Return the allocators of a trace, by device; empty if memory was not profiled."""
    made = trace.allocations
    keys = np.unique(np.stack([made.device_type, made.device]), axis=1).T.tolist()
    return [
        _follow(trace, kind, device, (made.device_type == kind) & (made.device == device))
        for kind, device in keys
    ]


def _follow(trace: Trace, device_type: int, device: int, mine: NDArray[np.bool_]) -> Memory:
    made = trace.allocations
    rows = np.flatnonzero(mine)
    rows = rows[np.argsort(made.time_ns[rows], kind="stable")]
    time_ns, size = made.time_ns[rows], made.size[rows]
    allocated, reserved = made.allocated[rows], made.reserved[rows]
    change = np.cumsum(size)
    first, last = _parts(time_ns)
    said = bool((allocated != NONE).any())
    return Memory(
        device_type=device_type,
        device=device,
        allocations=int((size > 0).sum()),
        frees=int((size < 0).sum()),
        allocated_bytes=int(size[size > 0].sum()),
        freed_bytes=-int(size[size < 0].sum()),
        peak_allocated_bytes=int(allocated.max()) if said else None,
        peak_reserved_bytes=int(reserved.max()) if (reserved != NONE).any() else None,
        peak_change_bytes=max(int(change.max()), 0),
        peak_ns=int(time_ns[(allocated if said else change).argmax()]),
        time_ns=time_ns[last],
        allocated=allocated[last],
        peak=np.maximum.reduceat(allocated, first),
        reserved=np.maximum.reduceat(reserved, first),
        change=change[last],
    )


def _parts(time_ns: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the first and last change of each part: one change each, or else equal times."""
    n = len(time_ns)
    if n <= MOST_POINTS:
        return np.arange(n), np.arange(n)
    # Each part reports its last value and its peak, so that no peak is lost to the part's length.
    span = int(time_ns[-1] - time_ns[0]) + 1
    part = (time_ns - time_ns[0]) // -(-span // MOST_POINTS)
    first = np.flatnonzero(np.diff(part, prepend=-1))
    return first, np.append(first[1:], n) - 1
