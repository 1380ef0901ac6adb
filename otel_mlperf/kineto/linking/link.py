"""Linking: the parent, launch, section and step of each event of a trace.

Host events nest by time on their thread (``forest``). The parent of device work is the operator
that launched it (``launches``); backward operators know their forward operator (``arrows``). If
the trace belongs to a run, recorded sections are above the events that they contain
(``sections``). Every event counts to a step (``host_parents``, ``threads``): a device event to the
step of the call that launched it, however late the device runs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.linking.arrows import find_forward
from otel_mlperf.kineto.linking.device_numbers import set_device_numbers
from otel_mlperf.kineto.linking.forest import find_parents
from otel_mlperf.kineto.linking.host_parents import HostEvents
from otel_mlperf.kineto.linking.instants import settle
from otel_mlperf.kineto.linking.launches import find_launches
from otel_mlperf.kineto.linking.linked_events import IS_DEVICE, Links, Place, Role, find_roles
from otel_mlperf.kineto.linking.merged_ranks import split_shared_rows, tell_apart
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
    """Find the parent, section and step of each event of a trace.

    Set device numbers of work from its rows, if the ``args`` have none of their own. Sections are
    ignored if the trace has no Unix time: then its time is not known.
    """
    roles = find_roles(trace)
    split_shared_rows(trace, roles)
    set_device_numbers(trace, roles)
    trace = tell_apart(trace, roles)
    is_host = ~np.isin(roles, (*IS_DEVICE, Role.WINDOW))
    around = _nest(trace, roles, is_host)
    backward = find_forward(trace, roles)
    given = sections if sections is not None and trace.is_unix_time else no_sections()
    # The order matters: the thread that waits for another follows from its forward operators,
    # steps from the waiting threads, parents from steps, and the device's parents from the host's.
    waiting = find_waiting(trace, around, backward.forward)
    host = HostEvents(trace, roles, is_host, around, waiting, given)
    steps, step = host.steps(backward.forward)
    links = host.place(steps, step)
    links.forward = backward.forward
    del host, waiting  # they take much memory for millions of events; what follows needs its own
    launches = find_launches(trace, roles, around, links.parent)
    _place_devices(links, launches, roles)
    links.orphans = _count(trace, links, launches, backward, roles)
    links.section, links.step = narrowed(links.section), narrowed(links.step)
    links.forward = narrowed(links.forward)
    return links


def _nest(trace: Trace, roles: NDArray[np.uint8], is_host: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return for each host event the one that contains it on its thread."""
    events, rows = trace.events, np.flatnonzero(is_host)
    # Of equal intervals calls are innermost; an operator's id is lower than those of its children.
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
    # An annotation that repeats a recorded section is not sent: the parent of what it launched is
    # the section.
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
    """Count events that are not linked, or contradictory, by kind; kinds with 0 are left out."""
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
