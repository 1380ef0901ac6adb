"""Launches of device work: the launching call and the parent operator of each device event.

A device event has the correlation of the runtime or driver call that launched it. All device events
of a graph share one correlation, and their parent is the call itself. The parent of any other
device event is the innermost operator or annotation around its call, not the host event that runs
at the time of the device event.

The ``External id`` of the device event or, if missing, of its call identifies the operator that the
profiler considered open. It is used in two cases: if no event is around the call, and if its
operator is more precise than the event around the call, because the operator is inside that event,
or is also around the call and ends earlier. If no operator is open, the profiler writes the
correlation into this field; such an id is ignored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.linking.arrows import find_arrows, last_before
from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.linked_events import IS_DEVICE, Role
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace


class Launches(NamedTuple):
    """Links between device events and the host; one item for each event of the trace."""

    call: NDArray[np.int32]
    """Row of the call that launched the device event; NONE if not known."""
    parent: NDArray[np.int32]
    is_unknown: NDArray[np.bool_]
    """Whether the event's External id belongs to no operator."""
    contradicts: NDArray[np.bool_]
    """Whether the event's External id belongs to an operator that is not around its call."""


def find_launches(
    trace: Trace,
    roles: NDArray[np.uint8],
    around: NDArray[np.int32],
    parents: NDArray[np.int32],
) -> Launches:
    """Return the call and the parent of each device event; both are NONE for other events.

    Args:
        trace: the trace.
        roles: role of each event.
        around: row of the event that contains each host event on its thread.
        parents: row of the parent of each host event.
    """
    # The call takes precedence over the External id, because a correlation identifies the exact
    # call. External ids are less reliable: some files repeat them, and without an open operator the
    # field contains the correlation.
    launch = _find_calls(trace, roles)
    rows = np.flatnonzero(_is_in(roles, IS_DEVICE))
    call = launch[rows]
    has_id, requester = _find_operators(trace, roles, rows, call)
    parent = np.full(len(roles), NONE, np.int32)
    parent[rows] = _find_parents(trace, roles, around, parents, call, requester)
    copies = roles == Role.DEVICE_ANNOTATION
    parent[copies] = _find_originals(trace, roles)[copies]
    is_unknown, contradicts = np.zeros((2, len(roles)), np.bool_)
    is_unknown[rows] = has_id & (requester == NONE)
    contradicts[rows] = (call != NONE) & (requester != NONE) & ~_contains(trace, requester, call)
    return Launches(launch, parent, is_unknown, contradicts)


def _find_parents(
    trace: Trace,
    roles: NDArray[np.uint8],
    around: NDArray[np.int32],
    parents: NDArray[np.int32],
    call: NDArray[np.int32],
    requester: NDArray[np.int32],
) -> NDArray[np.int32]:

    def above(parents: NDArray[np.int32], wanted: NDArray[np.bool_]) -> NDArray[np.int32]:
        return np.append(Forest(parents).nearest(wanted), np.int32(NONE))[call]

    is_owner = _is_in(roles, _OWNERS)
    owner = above(parents, is_owner)
    parent = np.where(_is_closer(trace, owner, call, requester), requester, owner)
    parent = np.where(_is_graph(trace)[call], call, parent)
    # Without an operator around the call, candidates in order of reliability: the operator of the
    # External id, the Python frame around the call, the call itself. The External id is not used if
    # an operator contains a recorded section around the call: then the section is closer.
    is_bare = above(around, is_owner) == NONE
    frame = above(parents, roles == Role.PYTHON)
    for better in (np.where(is_bare, requester, NONE), frame, call):
        parent = np.where(parent == NONE, better, parent)
    return parent


def _is_graph(trace: Trace) -> NDArray[np.bool_]:
    """Return a mask of the events that launch a graph; its last item, for NONE, is False."""
    is_graph = np.array([_GRAPH.search(name) is not None for name in trace.names] or [False])
    return np.append(is_graph[trace.events.name], False)


_GRAPH: Final = re.compile(r"(?:cu|hip)\w*GraphLaunch")


def _is_closer(
    trace: Trace, owner: NDArray[np.int32], call: NDArray[np.int32], requester: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return for each device event whether its requester is closer to its call than its owner.

    The owner is the event around the call, the requester is the operator of the External id. The
    requester is closer if it is inside the owner and started no later than the call (its recorded
    end can be a tick before that of the call), or if it is also around the call, started no later
    than the owner and ends earlier.
    """
    start, end = trace.events.start_ns, trace.events.start_ns + trace.events.duration_ns
    is_known = (owner != NONE) & (call != NONE) & (requester != NONE) & (requester != owner)
    is_inside = _contains(trace, owner, requester) & ~_contains(trace, requester, owner)
    is_inside &= start[requester] <= start[call]
    is_crossed = _contains(trace, requester, call) & (end[requester] < end[owner])
    is_crossed &= start[requester] <= start[owner]
    is_closer: NDArray[np.bool_] = is_known & (is_inside | is_crossed)
    return is_closer


def _contains(
    trace: Trace, outer: NDArray[np.int32], inner: NDArray[np.int32]
) -> NDArray[np.bool_]:
    events = trace.events
    end = events.start_ns + events.duration_ns
    is_around: NDArray[np.bool_] = events.track[outer] == events.track[inner]
    is_around &= events.start_ns[outer] <= events.start_ns[inner]
    is_around &= end[outer] >= end[inner]
    return is_around


_OWNERS = (Role.OPERATOR, Role.ANNOTATION, Role.HOST)


def _is_in(roles: NDArray[np.uint8], wanted: tuple[Role, ...]) -> NDArray[np.bool_]:
    table = np.zeros(max(Role) + 1, np.bool_)
    table[list(wanted)] = True
    return table[roles]


def _find_calls(trace: Trace, roles: NDArray[np.uint8]) -> NDArray[np.int32]:
    events = trace.events
    on_host = ~_is_in(roles, (*IS_DEVICE, Role.WINDOW))
    calls = np.flatnonzero(on_host & (events.correlation > 0))
    works = np.flatnonzero((roles == Role.DEVICE) & (events.correlation > 0))
    call = np.full(len(events), NONE, np.int32)
    wanted = events.correlation[works]
    call[works] = _matched(trace, calls, events.correlation[calls], works, wanted)
    # Second choice: an arrow lacks an end if the window started or ended between call and work.
    lost = np.flatnonzero((roles == Role.DEVICE) & (call == NONE))
    if len(lost):
        tails, heads = find_arrows(trace, "ac2g", np.flatnonzero(on_host), lost)
        call[heads] = tails
    return call


def _find_operators(
    trace: Trace, roles: NDArray[np.uint8], rows: NDArray[np.intp], call: NDArray[np.int32]
) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
    events = trace.events
    owners = np.flatnonzero(_is_in(roles, _OWNERS) & (events.external > 0))
    started = np.where(call == NONE, rows, call)
    id_row = np.where(events.external[rows] > 0, rows, started)
    wanted = events.external[id_row]
    # An id equal to the correlation is ignored, because the profiler writes it if no operator is
    # open.
    has_id = (wanted > 0) & (wanted != events.correlation[id_row]) & (roles[rows] == Role.DEVICE)
    operator = np.full(len(rows), NONE, np.int32)
    operator[has_id] = _matched(
        trace, owners, events.external[owners], started[has_id], wanted[has_id]
    )
    return has_id, operator


def _find_originals(trace: Trace, roles: NDArray[np.uint8]) -> NDArray[np.int32]:
    events = trace.events
    originals = np.flatnonzero((roles == Role.ANNOTATION) & (events.external > 0))
    copies = np.flatnonzero((roles == Role.DEVICE_ANNOTATION) & (events.external > 0))
    original = np.full(len(events), NONE, np.int32)
    wanted = events.external[copies]
    rows = _matched(trace, originals, events.external[originals], copies, wanted)
    # The id alone is not enough, because some files repeat External ids.
    same = rows != NONE
    same[same] = events.name[rows[same]] == events.name[copies[same]]
    original[copies[same]] = rows[same]
    return original


def _matched(
    trace: Trace,
    candidates: NDArray[np.intp],
    keys: NDArray[np.int64],
    started: NDArray[np.intp],
    wanted: NDArray[np.int64],
) -> NDArray[np.int64]:
    start = trace.events.start_ns
    at = last_before(keys, start[candidates], wanted, start[started])
    return np.where(at == NONE, NONE, np.append(candidates, NONE)[at])
