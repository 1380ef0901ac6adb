"""Which recorded sections were open while a profiler window ran, and where in its clock?

The recorder's times are the monotonic clock plus one anchor, read when the process began. A trace
of the profiler holds the system's Unix time. Where the system's clock was set or slewed in between,
the two differ; the window's own pair of readings at its start and end says by how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.kineto.events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(slots=True)
class Sections:
    """Recorded sections as columns, by start; every array has one item for each."""

    span_id: NDArray[np.uint64]
    parent_id: NDArray[np.uint64]
    """0: the root of its trace."""
    trace_id: NDArray[np.uint8]
    """16 bytes each."""
    start_ns: NDArray[np.int64]
    """Unix time, in the clock of the window."""
    end_ns: NDArray[np.int64]
    thread: NDArray[np.int64]
    """Native id of the thread; NONE if it is not known."""
    is_step: NDArray[np.bool_]
    """Whether it is a step of the window: the root of a step's trace."""
    name: list[str]

    def __len__(self) -> int:
        return len(self.span_id)


def no_sections() -> Sections:
    """What a trace that belongs to no run has."""
    ids, times = np.zeros(0, np.uint64), np.zeros(0, np.int64)
    return Sections(
        span_id=ids,
        parent_id=ids,
        trace_id=np.zeros((0, 16), np.uint8),
        start_ns=times,
        end_ns=times,
        thread=np.full(0, NONE, np.int64),
        is_step=np.zeros(0, np.bool_),
        name=[],
    )
