"""Which call launched each piece of work of a device, and under which operator?

A device event carries the correlation of the call of the runtime or driver that launched it; many
may carry one (a CUDA graph). Its parent is the innermost operator or annotation around that call,
not what happens to run on the host when the device gets to it. Its ``External id`` is asked where
the call is not in the trace, or nothing is around it: the profiler fills that field with the
correlation itself when it knows no operator, and such a number is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_mlperf.kineto.linking.arrows import find_arrows, last_before
from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.linked_events import IS_DEVICE, Role
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace


class Launches(NamedTuple):
    """How device events hang together with the host; one item for each event of the trace."""

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
    """The calls and parents of device events; NONE for all others.

    Args:
        trace: what was read.
        roles: of each event.
        around: of each host event the one that contains it on its thread.
        parents: of each host event the one that it hangs under.
    """
    # The call before the External id: a correlation names the very call, while the id is of the
    # operator that the profiler took to be open, was seen twice in one file, and is the
    # correlation once more where it knew no operator.
    call = _find_calls(trace, roles)
    told, asked = _find_operators(trace, roles)
    host = Forest(parents)
    owner = np.append(host.nearest(_is_in(roles, _OWNERS)), np.int32(NONE))[call]
    frame = np.append(host.nearest(roles == Role.PYTHON), np.int32(NONE))[call]
    is_bare = np.append(around, np.int32(NONE))[call] == NONE
    parent = np.where(roles == Role.DEVICE_ANNOTATION, _find_originals(trace, roles), owner)
    # What no operator is around: Python's frame is better than nothing, and so is the call itself.
    # In this order: an id that names an operator is knowledge, a frame of Python a good guess,
    # and the call itself at least the right time.
    for better in (np.where(is_bare, asked, NONE), frame, call):
        parent = np.where(parent == NONE, better, parent)
    is_unknown = told & (asked == NONE)
    return Launches(call, parent.astype(np.int32), is_unknown, _contradicts(trace, call, asked))


def _contradicts(
    trace: Trace, call: NDArray[np.int32], asked: NDArray[np.int32]
) -> NDArray[np.bool_]:
    events = trace.events
    end = events.start_ns + events.duration_ns
    is_around = events.track[asked] == events.track[call]
    is_around &= events.start_ns[asked] <= events.start_ns[call]
    is_around &= end[asked] >= end[call]
    contradicts: NDArray[np.bool_] = (call != NONE) & (asked != NONE) & ~is_around
    return contradicts


_OWNERS = (Role.OPERATOR, Role.ANNOTATION, Role.HOST)


def _is_in(roles: NDArray[np.uint8], wanted: tuple[Role, ...]) -> NDArray[np.bool_]:
    table = np.zeros(max(Role) + 1, np.bool_)
    table[list(wanted)] = True
    return table[roles]


def _find_calls(trace: Trace, roles: NDArray[np.uint8]) -> NDArray[np.int32]:
    """By correlation; by the arrow between call and device where there is none."""
    events = trace.events
    on_host = ~_is_in(roles, (*IS_DEVICE, Role.WINDOW))
    calls = np.flatnonzero(on_host & (events.correlation > 0))
    works = np.flatnonzero((roles == Role.DEVICE) & (events.correlation > 0))
    call = np.full(len(events), NONE, np.int32)
    call[works] = _matched(trace, calls, events.correlation[calls], works, events.correlation)
    # Second, because an arrow may lack an end where the window began or ended in between.
    lost = np.flatnonzero((roles == Role.DEVICE) & (call == NONE))
    if len(lost):
        tails, heads = find_arrows(trace, "ac2g", np.flatnonzero(on_host), lost)
        call[heads] = tails
    return call


def _find_operators(
    trace: Trace, roles: NDArray[np.uint8]
) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
    """Which works have an External id, and the operators that these are of."""
    events = trace.events
    owners = np.flatnonzero(_is_in(roles, _OWNERS) & (events.external > 0))
    # Equal to the correlation it is no id of an operator: that is what the profiler fills in when
    # it knows none.
    told = (events.external > 0) & (events.external != events.correlation)
    told &= roles == Role.DEVICE
    works = np.flatnonzero(told)
    operator = np.full(len(events), NONE, np.int32)
    operator[works] = _matched(trace, owners, events.external[owners], works, events.external)
    return told, operator


def _find_originals(trace: Trace, roles: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The annotation of which a device's is a copy: the same External id and the same name."""
    events = trace.events
    originals = np.flatnonzero((roles == Role.ANNOTATION) & (events.external > 0))
    copies = np.flatnonzero((roles == Role.DEVICE_ANNOTATION) & (events.external > 0))
    original = np.full(len(events), NONE, np.int32)
    rows = _matched(trace, originals, events.external[originals], copies, events.external)
    # The number alone is not enough: External ids were seen twice in one file.
    same = rows != NONE
    same[same] = events.name[rows[same]] == events.name[copies[same]]
    original[copies[same]] = rows[same]
    return original


def _matched(
    trace: Trace,
    candidates: NDArray[np.intp],
    keys: NDArray[np.int64],
    works: NDArray[np.intp],
    column: NDArray[np.int64],
) -> NDArray[np.int64]:
    """For each of ``works`` the row of the candidate with its key."""
    start = trace.events.start_ns
    at = last_before(keys, start[candidates], column[works], start[works])
    return np.where(at == NONE, NONE, np.append(candidates, NONE)[at])
