"""Which events do the arrows of a trace join?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.kineto.linking.matching import last_before
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace


def find_arrows(
    trace: Trace, kind: str, tails: NDArray[np.intp], heads: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of the events where arrows of a kind begin and end, pair by pair.

    An end of an arrow belongs to the event, of those given, that begins at its time on its track;
    of several to the last in the file. Arrows that lack an end, or an event there, are left out. An
    id that is used twice joins what comes next in time.
    """
    flows = trace.flows
    number = trace.flow_kinds.index(kind) if kind in trace.flow_kinds else NONE
    begins, tail = _at(trace, tails, np.flatnonzero((flows.kind == number) & flows.starts))
    ends, head = _at(trace, heads, np.flatnonzero((flows.kind == number) & ~flows.starts))
    paired = last_before(
        flows.id[begins], flows.time_ns[begins], flows.id[ends], flows.time_ns[ends]
    )
    return tail[paired[paired != NONE]], head[paired != NONE]


def _at(
    trace: Trace, rows: NDArray[np.intp], ends: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The ends that meet an event, and its row."""
    track, start = trace.events.track[rows], trace.events.start_ns[rows]
    time = trace.flows.time_ns[ends]
    found = last_before(track, start, trace.flows.track[ends], time)
    meets = found != NONE
    meets[meets] = start[found[meets]] == time[meets]
    return ends[meets], rows[found[meets]]
