"""Arrows and shared ids between events, and the forward operators of backward operators.

Keys are ids that should be unique and are not: correlations restart with each window of the
profiler, External ids were seen twice, and operators of one thread share sequence numbers. The
intended candidate is the last one that started no later.

Autograd numbers its nodes for each thread. The operator that makes a node and the one that runs it
backward have the same sequence number; the latter also has the number of the thread that made it.
That number is autograd's own and has to be matched with a track. Among several operators with one
sequence number, the last one to start before the backward operator made the node: earlier ones
made none, and operators around it started earlier. The file's arrows between the two operators
agree with this; where they do not, the arrows take precedence.
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
    """Return the index of the candidate for each wanted key and time; NONE without one.

    If all candidates of a key start later, it is the first of them: the clocks of host and device
    may differ by more than a launch takes.
    """
    count = len(keys)
    if not count or not len(wanted_keys):
        return np.full(len(wanted_keys), NONE, np.int64)
    # Candidates and queries are sorted together, by key and time. At equal times the candidate
    # comes first and answers the query: the sort is stable. A search for each query would be a
    # loop in Python.
    all_times, all_keys = np.concatenate((times, wanted_times)), np.concatenate((keys, wanted_keys))
    order = np.lexsort((all_times, all_keys)).astype(np.int32)
    del all_times, all_keys
    asks = np.flatnonzero(order >= count)
    asked = order[asks] - count
    # The candidates around each query: the last one before it, and the next one.
    candidates = order[order < count]
    del order
    passed = asks - np.arange(len(asks))
    result = np.full(len(asked), NONE, np.int64)
    for place in (passed, passed - 1):  # The second result overrides the first.
        inside = np.flatnonzero((place >= 0) & (place < count))
        found = candidates[place[inside]]
        same = keys[found] == wanted_keys[asked[inside]]
        result[asked[inside[same]]] = found[same]
    return result


def find_arrows(
    trace: Trace, kind: str, tails: NDArray[np.intp], heads: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of the events where arrows of a kind start and end, pair by pair.

    An end of an arrow belongs to the event, of those given, that starts at its time on its track;
    of several events to the last in the file. Arrows that lack an end, or an event there, are left
    out. An id that is used twice joins what comes next in time.
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
    """Return the arrow ends that meet an event, and the row of that event."""
    track, start = trace.events.track[rows], trace.events.start_ns[rows]
    time = trace.flows.time_ns[ends]
    begun = last_before(track, start, trace.flows.track[ends], time)
    meets = begun != NONE
    meets[meets] = start[begun[meets]] == time[meets]
    return ends[meets], rows[begun[meets]]


_MOST_THREADS: Final = 256
"""Maximum number of thread numbers considered: a file with more was not written by autograd."""
_LARGEST_KEY: Final = 1 << 62


class Backward(NamedTuple):
    """Forward operators, one item for each event of the trace."""

    forward: NDArray[np.int32]
    contradictions: int
    """How often arrow and sequence number name different operators."""


def find_forward(trace: Trace, roles: NDArray[np.uint8]) -> Backward:
    """Return the forward operator of each backward operator; NONE for all others."""
    events = trace.events
    is_operator = roles == Role.OPERATOR
    numbered = is_operator & (events.sequence >= 0)
    # Nothing or 0 in the field: no other thread has made its node.
    ahead = np.flatnonzero(numbered & (events.forward_thread <= 0))
    back = np.flatnonzero(numbered & (events.forward_thread > 0))
    operators = np.flatnonzero(is_operator)
    tails, heads = find_arrows(trace, "fwdbwd", operators, operators)
    forward = np.full(len(events), NONE, np.int32)
    forward[back] = _by_number(trace, ahead, back, _tracks(trace, ahead, back, tails, heads))
    # The arrow takes precedence: its writer knows both ends. A difference is counted, since it
    # means that numbers were reused.
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
    """Map autograd's number of a thread to its track.

    The arrows decide; without any, the track that has most of the sequence numbers that came back.
    """
    events = trace.events
    tracks: dict[int, int] = {}
    for thread in np.unique(events.forward_thread[back])[:_MOST_THREADS].tolist():
        joined = events.track[tails[events.forward_thread[heads] == thread]]
        if not len(joined):
            wanted = events.sequence[back[events.forward_thread[back] == thread]]
            joined = events.track[ahead[np.isin(events.sequence[ahead], wanted)]]
        if len(joined):
            # The majority decides: one wrong arrow, or numbers that another thread used as well,
            # do not change the result.
            tracks[thread] = int(np.bincount(joined).argmax())
    return tracks


def _by_number(
    trace: Trace, ahead: NDArray[np.intp], back: NDArray[np.intp], tracks: dict[int, int]
) -> NDArray[np.int64]:
    """Return for each of ``back`` the last of ``ahead`` with its number on its thread's track."""
    events, count = trace.events, max(len(trace.tracks), 1)
    ahead = ahead[events.sequence[ahead] < _LARGEST_KEY // count]
    threads = events.forward_thread[back]
    track = np.full(len(back), NONE, np.int64)
    for thread, its_track in tracks.items():
        track[threads == thread] = its_track
    asks = np.flatnonzero((track != NONE) & (events.sequence[back] < _LARGEST_KEY // count))
    wanted = events.sequence[back[asks]].astype(np.int64) * count + track[asks]
    keys = events.sequence[ahead].astype(np.int64) * count + events.track[ahead]
    start = events.start_ns
    at = last_before(keys, start[ahead], wanted, start[back[asks]])
    rows = np.where(at == NONE, NONE, np.append(ahead, NONE)[at])
    forward = np.full(len(back), NONE, np.int64)
    forward[asks] = np.where(start[rows] > start[back[asks]], NONE, rows)
    return forward
