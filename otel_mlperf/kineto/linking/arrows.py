"""Which events do the arrows of a trace join, and which of several with the same key are meant?

Keys are ids that should be unique and are not: correlations start again with each window of the
profiler, External ids were seen twice, and operators of one thread share sequence numbers. The one
that is meant is the last that began no later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace


def last_before(
    keys: NDArray[np.int64] | NDArray[np.int32],
    times: NDArray[np.int64],
    wanted_keys: NDArray[np.int64] | NDArray[np.int32],
    wanted_times: NDArray[np.int64],
) -> NDArray[np.int64]:
    """For each wanted key and time the index of the candidate; NONE without one.

    Where all candidates of a key begin later, it is the first of them: the clocks of host and
    device may differ by more than a launch takes.
    """
    count = len(keys)
    if not count or not len(wanted_keys):
        return np.full(len(wanted_keys), NONE, np.int64)
    all_keys = np.concatenate((keys, wanted_keys))
    # Candidates and questions are sorted together, by key and time; of one time the candidate
    # comes first, so that it answers. A search for each question would be a loop in Python.
    asks = np.arange(len(all_keys)) >= count
    order = np.lexsort((asks, np.concatenate((times, wanted_times)), all_keys))
    at = np.arange(len(order))
    is_candidate = ~asks[order]
    before = np.maximum.accumulate(np.where(is_candidate, at, NONE))
    after = np.minimum.accumulate(np.where(is_candidate, at, len(order))[::-1])[::-1]
    found = np.full(len(order), NONE, np.int64)
    for place in (after, before):  # the second overrules the first
        inside = (place >= 0) & (place < len(order))
        inside[inside] = all_keys[order[place[inside]]] == all_keys[order[inside]]
        found[order[inside]] = order[place[inside]]
    result: NDArray[np.int64] = found[count:]
    return result


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
