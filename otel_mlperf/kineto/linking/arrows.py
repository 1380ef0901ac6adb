"""Arrows and shared ids between events, and the forward operators of backward operators.

Events are matched by ids that should be unique but are not: correlations restart with each window
of the profiler, some files repeat External ids, and operators of one thread share sequence numbers.
Among several candidates with the same id, the last that started no later than the event is chosen.

Autograd numbers its nodes separately for each thread. The forward operator that creates a node and
the backward operator that runs it have the same sequence number. The backward operator also records
autograd's own number of the creating thread, which has to be matched with a track. Among several
forward operators with one sequence number, the node was created by the last one that started before
the backward operator: operators around it started earlier, and earlier operators created no node.
If the file's arrows between forward and backward operators disagree, the arrows take precedence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.linking.linked_events import Role
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
    """Return, for each wanted key, its last candidate that is no later than the wanted time.

    The result contains indices into ``keys`` and ``times``, the columns of the candidates. If all
    candidates with a key are later, their first is returned, because the clocks of host and device
    can differ by more than the duration of a launch. If no candidate has the key: NONE.
    """
    count = len(keys)
    if not count or not len(wanted_keys):
        return np.full(len(wanted_keys), NONE, np.int64)
    # Candidates and queries are sorted together, by key and time, because a search for each query
    # would be a loop in Python. The sort is stable: at equal times the candidate comes first.
    all_times, all_keys = np.concatenate((times, wanted_times)), np.concatenate((keys, wanted_keys))
    order = np.lexsort((all_times, all_keys)).astype(np.int32)
    del all_times, all_keys
    queries_at = np.flatnonzero(order >= count)
    query = order[queries_at] - count
    # The candidates next to each query: the last candidate before it, and the first after it.
    candidates = order[order < count]
    del order
    passed = queries_at - np.arange(len(queries_at))
    result = np.full(len(query), NONE, np.int64)
    for place in (passed, passed - 1):  # The second result overrides the first.
        inside = np.flatnonzero((place >= 0) & (place < count))
        found = candidates[place[inside]]
        same = keys[found] == wanted_keys[query[inside]]
        result[query[inside[same]]] = found[same]
    return result


def find_arrows(
    trace: Trace, kind: str, tails: NDArray[np.intp], heads: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the events that arrows of one kind connect: rows of the starts and rows of the ends.

    ``tails`` and ``heads`` are the rows of candidate events for the starts and ends. Each end of an
    arrow belongs to the event that starts at the same time on the same track, the last in the file
    if there are several. Arrows with a missing end or event are omitted. If arrows share an id, an
    end is paired with the last start before it.
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
    track, start = trace.events.track[rows], trace.events.start_ns[rows]
    time = trace.flows.time_ns[ends]
    started = last_before(track, start, trace.flows.track[ends], time)
    meets = started != NONE
    meets[meets] = start[started[meets]] == time[meets]
    return ends[meets], rows[started[meets]]


_MAX_THREADS: Final = 256
"""Maximum number of thread numbers to match; a file with more was not written by autograd."""
_LARGEST_KEY: Final = 1 << 62


class Backward(NamedTuple):
    """Forward operators of the backward operators of a trace, and the number of contradictions."""

    forward: NDArray[np.int32]
    contradictions: int
    """Number of operators for which the arrow and the sequence number disagree."""


def find_forward(trace: Trace, roles: NDArray[np.uint8]) -> Backward:
    """Return the forward operator of each backward operator, and the number of contradictions."""
    events = trace.events
    is_operator = roles == Role.OPERATOR
    numbered = is_operator & (events.sequence >= 0)
    # A missing thread number or 0 marks a forward operator.
    ahead = np.flatnonzero(numbered & (events.forward_thread <= 0))
    back = np.flatnonzero(numbered & (events.forward_thread > 0))
    operators = np.flatnonzero(is_operator)
    tails, heads = find_arrows(trace, "fwdbwd", operators, operators)
    forward = np.full(len(events), NONE, np.int32)
    forward[back] = _by_number(trace, ahead, back, _tracks(trace, ahead, back, tails, heads))
    # The arrow takes precedence, because the profiler wrote it with both ends known. Differences
    # are counted: they mean that sequence numbers were reused.
    differs = (forward[heads] != NONE) & (forward[heads] != tails)
    forward[heads] = tails
    return Backward(forward, int(differs.sum()))


def _tracks(
    trace: Trace,
    ahead: NDArray[np.intp],
    back: NDArray[np.intp],
    tails: NDArray[np.intp],
    heads: NDArray[np.intp],
) -> dict[int, int]:
    """Map autograd's number of each thread to the thread's track.

    The track is the one on which most arrows to the thread's backward operators start. If there are
    no arrows, it is the track with most of the sequence numbers of these backward operators.
    """
    events = trace.events
    tracks: dict[int, int] = {}
    for thread in np.unique(events.forward_thread[back])[:_MAX_THREADS].tolist():
        joined = events.track[tails[events.forward_thread[heads] == thread]]
        if not len(joined):
            wanted = events.sequence[back[events.forward_thread[back] == thread]]
            joined = events.track[ahead[np.isin(events.sequence[ahead], wanted)]]
        if len(joined):
            # The majority decides, so that a wrong arrow or a number that other threads also used
            # does not change the result.
            tracks[thread] = int(np.bincount(joined).argmax())
    return tracks


def _by_number(
    trace: Trace, ahead: NDArray[np.intp], back: NDArray[np.intp], tracks: dict[int, int]
) -> NDArray[np.int64]:
    """Return for each row in ``back`` the forward operator in ``ahead``; NONE if none matches."""
    events, count = trace.events, max(len(trace.tracks), 1)
    ahead = ahead[events.sequence[ahead] < _LARGEST_KEY // count]
    threads = events.forward_thread[back]
    track = np.full(len(back), NONE, np.int64)
    for thread, its_track in tracks.items():
        track[threads == thread] = its_track
    queries_at = np.flatnonzero((track != NONE) & (events.sequence[back] < _LARGEST_KEY // count))
    wanted = events.sequence[back[queries_at]].astype(np.int64) * count + track[queries_at]
    keys = events.sequence[ahead].astype(np.int64) * count + events.track[ahead]
    start = events.start_ns
    at = last_before(keys, start[ahead], wanted, start[back[queries_at]])
    rows = np.where(at == NONE, NONE, np.append(ahead, NONE)[at])
    forward = np.full(len(back), NONE, np.int64)
    forward[queries_at] = np.where(start[rows] > start[back[queries_at]], NONE, rows)
    return forward
