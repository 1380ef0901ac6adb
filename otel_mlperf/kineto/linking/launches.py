"""Launches of device work: the launching call and the parent operator of each device event.

A device event has the correlation of the call of the runtime or driver that launched it. Several
events may share one correlation: those of a graph, whose parent is the call itself. The parent of
any other device event is the innermost operator or annotation around that call, not what happens
to run on the host when the device runs it.

The ``External id``, of the work or else of its call, names the operator that the profiler
considered open. It is used where nothing else is known, and where it only adds detail: that
operator is inside the event around the call, or it is around the call as well and ends sooner. If
the profiler knows no operator, it fills that field with the correlation itself; such a number is
ignored.
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
    """Row of the call that launched it."""
    parent: NDArray[np.int32]
    is_unknown: NDArray[np.bool_]
    """Whether its External id is no operator's."""
    contradicts: NDArray[np.bool_]
    """Whether its External id is that of an operator that is not around its call."""


def find_launches(
    trace: Trace,
    roles: NDArray[np.uint8],
    around: NDArray[np.int32],
    parents: NDArray[np.int32],
) -> Launches:
    """Return the calls and parents of device events; NONE for all others.

    Args:
        trace: what was read.
        roles: role of each event.
        around: for each host event the one that contains it on its thread.
        parents: for each host event its parent.
    """
    # The call takes precedence over the External id. A correlation names the exact call. The id is
    # of the operator that the profiler considered open, was seen twice in one file, and repeats
    # the correlation if the profiler knew no operator.
    launch = _find_calls(trace, roles)
    rows = np.flatnonzero(_is_in(roles, IS_DEVICE))
    call = launch[rows]
    told, asked = _find_operators(trace, roles, rows, call)
    parent = np.full(len(roles), NONE, np.int32)
    parent[rows] = _find_parents(trace, roles, around, parents, call, asked)
    copies = roles == Role.DEVICE_ANNOTATION
    parent[copies] = _find_originals(trace, roles)[copies]
    is_unknown, contradicts = np.zeros((2, len(roles)), np.bool_)
    is_unknown[rows] = told & (asked == NONE)
    contradicts[rows] = (call != NONE) & (asked != NONE) & ~_contains(trace, asked, call)
    return Launches(launch, parent, is_unknown, contradicts)


def _find_parents(
    trace: Trace,
    roles: NDArray[np.uint8],
    around: NDArray[np.int32],
    parents: NDArray[np.int32],
    call: NDArray[np.int32],
    asked: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Return the parent of each piece of work, by its call and the operator of its External id."""

    def above(parents: NDArray[np.int32], wanted: NDArray[np.bool_]) -> NDArray[np.int32]:
        return np.append(Forest(parents).nearest(wanted), np.int32(NONE))[call]

    is_owner = _is_in(roles, _OWNERS)
    owner = above(parents, is_owner)
    parent = np.where(_says_more(trace, owner, call, asked), asked, owner)
    parent = np.where(_is_graph(trace)[call], call, parent)
    # If no operator is around the call: an id that names one is certain, a frame of Python a good
    # guess, and the call itself has at least the right time. If an operator is around the call,
    # but outside of a recorded section, the section is nearer than any of them.
    is_bare = above(around, is_owner) == NONE
    frame = above(parents, roles == Role.PYTHON)
    for better in (np.where(is_bare, asked, NONE), frame, call):
        parent = np.where(parent == NONE, better, parent)
    return parent


def _is_graph(trace: Trace) -> NDArray[np.bool_]:
    """Return which events launch a graph: no operator requested its kernels one by one."""
    is_graph = np.array([_GRAPH.search(name) is not None for name in trace.names] or [False])
    return np.append(is_graph[trace.events.name], False)


_GRAPH: Final = re.compile(r"(?:cu|hip)\w*GraphLaunch")


def _says_more(
    trace: Trace, owner: NDArray[np.int32], call: NDArray[np.int32], asked: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return whether the External id's operator is nearer to the call than the owner by time.

    It is inside the owner and had started: it ended a tick before the call did. Or both are around
    the call, and the owner, though started later, outlives it.
    """
    start, end = trace.events.start_ns, trace.events.start_ns + trace.events.duration_ns
    is_known = (owner != NONE) & (call != NONE) & (asked != NONE) & (asked != owner)
    is_inside = _contains(trace, owner, asked) & ~_contains(trace, asked, owner)
    is_inside &= start[asked] <= start[call]
    is_crossed = _contains(trace, asked, call) & (end[asked] < end[owner])
    is_crossed &= start[asked] <= start[owner]
    says_more: NDArray[np.bool_] = is_known & (is_inside | is_crossed)
    return says_more


def _contains(
    trace: Trace, outer: NDArray[np.int32], inner: NDArray[np.int32]
) -> NDArray[np.bool_]:
    """Return whether one event is around another, by time and thread."""
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
    """Return the call of each work by correlation, else by the arrow between call and device."""
    events = trace.events
    on_host = ~_is_in(roles, (*IS_DEVICE, Role.WINDOW))
    calls = np.flatnonzero(on_host & (events.correlation > 0))
    works = np.flatnonzero((roles == Role.DEVICE) & (events.correlation > 0))
    call = np.full(len(events), NONE, np.int32)
    wanted = events.correlation[works]
    call[works] = _matched(trace, calls, events.correlation[calls], works, wanted)
    # Second choice, because an arrow may lack an end if the window started or ended in between.
    lost = np.flatnonzero((roles == Role.DEVICE) & (call == NONE))
    if len(lost):
        tails, heads = find_arrows(trace, "ac2g", np.flatnonzero(on_host), lost)
        call[heads] = tails
    return call


def _find_operators(
    trace: Trace, roles: NDArray[np.uint8], rows: NDArray[np.intp], call: NDArray[np.int32]
) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
    """Return which works have an External id, their own or their call's, and its operators."""
    events = trace.events
    owners = np.flatnonzero(_is_in(roles, _OWNERS) & (events.external > 0))
    begun = np.where(call == NONE, rows, call)
    teller = np.where(events.external[rows] > 0, rows, begun)
    wanted = events.external[teller]
    # An id equal to the correlation is not an operator's: the profiler fills it in when it knows
    # none.
    told = (wanted > 0) & (wanted != events.correlation[teller]) & (roles[rows] == Role.DEVICE)
    operator = np.full(len(rows), NONE, np.int32)
    operator[told] = _matched(trace, owners, events.external[owners], begun[told], wanted[told])
    return told, operator


def _find_originals(trace: Trace, roles: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the original of each device annotation: the same External id and the same name."""
    events = trace.events
    originals = np.flatnonzero((roles == Role.ANNOTATION) & (events.external > 0))
    copies = np.flatnonzero((roles == Role.DEVICE_ANNOTATION) & (events.external > 0))
    original = np.full(len(events), NONE, np.int32)
    wanted = events.external[copies]
    rows = _matched(trace, originals, events.external[originals], copies, wanted)
    # The number alone is not enough: External ids were seen twice in one file.
    same = rows != NONE
    same[same] = events.name[rows[same]] == events.name[copies[same]]
    original[copies[same]] = rows[same]
    return original


def _matched(
    trace: Trace,
    candidates: NDArray[np.intp],
    keys: NDArray[np.int64],
    begun: NDArray[np.intp],
    wanted: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the candidate's row for each wanted key; it started before the event ``begun``."""
    start = trace.events.start_ns
    at = last_before(keys, start[candidates], wanted, start[begun])
    return np.where(at == NONE, NONE, np.append(candidates, NONE)[at])
