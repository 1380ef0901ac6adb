"""Linking: the parent, launch, section and step of each event of a trace.

Host events are nested by time on their thread (``forest``). The parent of device work is the
operator that launched it (``launches``); backward operators are linked to their forward operator
(``arrows``). If the trace belongs to a run, recorded sections are above the events that they
contain (``sections``). Every event is assigned to a step (``host_parents``, ``threads``), a device
event to the step of the call that launched it, no matter how late the event runs.

If times are whole microseconds, a fifth of all operators have duration 0. By time alone, such an
operator is inside the event that starts at the same time, and never inside an event that ends then.
External ids correct this. An event with a higher id started later and is not around the operator.
An event that ends at the operator's time is around the operator if two conditions are met: the
event has a lower id, and elsewhere in the file an operator with the operator's name is inside an
event with the event's name. A test with 1,743 operators of nanosecond traces, cut to microseconds,
placed all of them correctly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.linking.arrows import find_forward, last_before
from otel_mlperf.kineto.linking.device_numbers import set_device_numbers
from otel_mlperf.kineto.linking.forest import find_parents
from otel_mlperf.kineto.linking.host_parents import HostEvents
from otel_mlperf.kineto.linking.launches import find_launches
from otel_mlperf.kineto.linking.linked_events import IS_DEVICE, Links, Place, Role, find_roles
from otel_mlperf.kineto.linking.merged_ranks import make_ids_unique, split_shared_rows
from otel_mlperf.kineto.linking.sections import no_sections
from otel_mlperf.kineto.linking.threads import find_waiting
from otel_mlperf.kineto.reading.value_columns import narrowed
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.arrows import Backward
    from otel_mlperf.kineto.linking.launches import Launches
    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.trace_events import Trace


def link(trace: Trace, sections: Sections | None = None) -> Links:
    """Return the links (parent, section, step, launch) of each event of a trace.

    ``trace`` is changed: missing device numbers are set, and merged ranks get rows of their own.
    ``sections`` are ignored if the trace has no Unix time, because they cannot be aligned.
    """
    roles = find_roles(trace)
    split_shared_rows(trace, roles)
    set_device_numbers(trace, roles)
    trace = make_ids_unique(trace, roles)
    is_host = ~np.isin(roles, (*IS_DEVICE, Role.WINDOW))
    around = _nest(trace, roles, is_host)
    backward = find_forward(trace, roles)
    usable = sections if sections is not None and trace.is_unix_time else no_sections()
    # The order matters: waiting threads are derived from forward operators, steps from waiting
    # threads, parents from steps, and parents of device events from those of host events.
    waiting = find_waiting(trace, around, backward.forward)
    host = HostEvents(trace, roles, is_host, around, waiting, usable)
    steps, step = host.steps(backward.forward)
    links = host.place(steps, step)
    links.forward = backward.forward
    del host, waiting  # Frees much memory, which the following steps need.
    launches = find_launches(trace, roles, around, links.parent)
    _place_devices(links, launches, roles)
    links.orphans = _count(trace, links, launches, backward, roles)
    links.section, links.step = narrowed(links.section), narrowed(links.step)
    links.forward = narrowed(links.forward)
    return links


def _nest(trace: Trace, roles: NDArray[np.uint8], is_host: NDArray[np.bool_]) -> NDArray[np.int32]:
    events, rows = trace.events, np.flatnonzero(is_host)
    # Among equal intervals, calls are innermost. An operator has a lower id than its children.
    rank = _DEPTHS[roles[rows]] << 48 | np.clip(
        events.external[rows].astype(np.int64), 0, (1 << 48) - 1
    )
    parents = find_parents(
        events.track[rows],
        events.start_ns[rows],
        events.duration_ns[rows],
        rank,
        roles[rows] == Role.PYTHON,
    )
    around = np.full(len(events), NONE, np.int32)
    around[rows] = np.append(rows, NONE)[parents]
    settle(trace, roles, around)
    return around


_DEPTHS: Final = np.zeros(len(Role), np.int64)
_DEPTHS[[Role.PYTHON, Role.OPERATOR, Role.HOST, Role.CALL]] = [1, 2, 3, 4]


def _place_devices(links: Links, launches: Launches, roles: NDArray[np.uint8]) -> None:
    rows = np.flatnonzero(links.is_device)
    call, parent = launches.call[rows], launches.parent[rows]
    by_id = np.where(roles[rows] == Role.DEVICE_ANNOTATION, Place.ANNOTATED, Place.ASKED)
    place = np.where(call != NONE, Place.LAUNCHED, by_id)
    links.place[rows] = np.where(parent == NONE, Place.ORPHAN, place)
    links.launch[rows] = call
    cause = np.where(call == NONE, parent, call)
    links.step[rows] = np.append(links.step, np.int32(NONE))[cause]
    # An annotation that repeats a recorded section is not sent. Therefore the section becomes the
    # parent of the annotation's device events.
    is_shown_as_section = np.append(links.place, np.uint8(Place.ROOT))[parent] == Place.TWIN
    links.section[rows[is_shown_as_section]] = links.section[parent[is_shown_as_section]]
    links.parent[rows] = np.where(is_shown_as_section, NONE, parent)


def _count(
    trace: Trace,
    links: Links,
    launches: Launches,
    backward: Backward,
    roles: NDArray[np.uint8],
) -> dict[str, int]:
    works = roles == Role.DEVICE
    copies = roles == Role.DEVICE_ANNOTATION
    inside = (links.place != Place.WINDOW) & bool(links.steps)
    affected = {
        "launch_unknown": works & (links.place == Place.ORPHAN),
        "call_missing": works & (links.place == Place.ASKED),
        "annotation_unknown": copies & (links.place == Place.ORPHAN),
        "external_id_unknown": works & launches.is_unknown,
        "external_id_contradicts": works & launches.contradicts,
        "outside_steps": inside & (links.step == NONE),
    }
    counts = {kind: int(rows.sum()) for kind, rows in affected.items()}
    counts["forward_contradicts"] = backward.contradictions
    return {kind: count for kind, count in counts.items() if count}


_MAX_LEVELS: Final = 64
"""Maximum nesting depth considered at one time, because a file may be maliciously deep."""


def settle(trace: Trace, roles: NDArray[np.uint8], around: NDArray[np.int32]) -> None:
    """Correct ``around`` in place for operators with duration 0, using their External ids."""
    events = trace.events
    is_operator = roles == Role.OPERATOR
    rows = np.flatnonzero(is_operator & (events.duration_ns <= 0) & (events.external > 0))
    if not len(rows):
        return
    above = around[rows]
    for _ in range(_MAX_LEVELS):
        late = (above != NONE) & (events.start_ns[above] == events.start_ns[rows])
        late &= events.external[above] > events.external[rows]
        if not late.any():
            break
        above[late] = around[above[late]]
    inner = _ending(trace, is_operator, rows)
    known = _pairs(trace, is_operator, around)
    end = events.start_ns + events.duration_ns
    for _ in range(_MAX_LEVELS):
        inner[(inner != NONE) & (end[inner] != events.start_ns[rows])] = NONE
        going = inner != NONE
        if not going.any():
            break
        fits = going & np.isin(_pair(trace, inner, rows), known)
        above[fits] = inner[fits]
        inner = np.where(fits | ~going, NONE, around[inner])
    around[rows] = above


def _ending(
    trace: Trace, is_operator: NDArray[np.bool_], rows: NDArray[np.intp]
) -> NDArray[np.int32]:
    events = trace.events
    end, number = events.start_ns + events.duration_ns, events.external
    moments, moment = np.unique(events.start_ns[rows], return_inverse=True)
    longer = np.flatnonzero(is_operator & (events.duration_ns > 0) & (number > 0))
    longer = longer[np.isin(end[longer], moments)]
    tracks = len(trace.tracks)
    place = np.searchsorted(moments, end[longer]) * tracks + events.track[longer]
    wanted = moment.reshape(-1) * tracks + events.track[rows]
    at = last_before(place, number[longer], wanted, number[rows])
    found = np.append(longer, NONE)[at]
    is_before = (found != NONE) & (number[found] < number[rows])
    return np.where(is_before, found, NONE).astype(np.int32)


def _pairs(
    trace: Trace, is_operator: NDArray[np.bool_], around: NDArray[np.int32]
) -> NDArray[np.int64]:
    events = trace.events
    is_inside = is_operator & (around != NONE) & is_operator[around]
    # Uncertain pairs are excluded, because an event with duration 0 that starts with the event
    # around it may have ended before.
    is_inside &= (events.duration_ns > 0) | (events.start_ns > events.start_ns[around])
    inside = np.flatnonzero(is_inside)
    return np.unique(_pair(trace, around[inside], inside))


def _pair(trace: Trace, outer: NDArray[np.int32], inner: NDArray[np.intp]) -> NDArray[np.int64]:
    name = trace.events.name
    pairs: NDArray[np.int64] = name[outer].astype(np.int64) * len(trace.names) + name[inner]
    return pairs
