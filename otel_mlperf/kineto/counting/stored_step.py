"""Totals of one profiled step, counted from the stored rows of its events.

The rows are converted to the columns of a trace and counted by the same functions as a window.
Therefore the totals of all steps and of the events outside of steps sum to the totals of the
window. Parents are read from the rows. Nesting on a thread is derived again, from the step's events
alone.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.kineto.counting.attribution import Attribution
from otel_mlperf.kineto.counting.device_work import (
    OTHER,
    WAYS,
    WorkKind,
    add_up_copies,
    numbered_work,
)
from otel_mlperf.kineto.counting.replayed_graphs import ReplayedGraphs
from otel_mlperf.kineto.counting.streams import measure_devices, measure_streams
from otel_mlperf.kineto.counting.window_totals import PYTHON_FUNCTION, window_totals
from otel_mlperf.kineto.linking.forest import Forest, find_parents
from otel_mlperf.kineto.linking.linked_events import (
    IS_DEVICE,
    Links,
    Place,
    Role,
    find_roles,
)
from otel_mlperf.kineto.trace_events import NONE, Allocations, Events, Flows, Trace
from otel_mlperf.store.window_facts import ANNOTATION, KERNEL, OPERATOR
from otel_mlperf.tables.window_tables import WindowTables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.store.window_facts import StepEvents
    from otel_mlperf.tables.window_tables import CopyRow, StreamRow, TotalRow

_Event = dict[str, Any]
"""Row of table ``spans``."""
_Kind = TypeVar("_Kind", Events, Flows, Allocations)
_DEPTHS: Final = np.full(len(Role), 2, np.int64)
"""Nesting order of equal intervals by role: the interval with the lower value is the outer one."""
_DEPTHS[[Role.ANNOTATION, Role.OPERATOR]] = [0, 1]
_NOT_NESTED: Final = (*IS_DEVICE, Role.PYTHON)
"""Roles of events that are excluded from nesting on a thread.

Device work does not run on the thread. Without frames, an event in a frame is inside the operator
around the frame.
"""
_NUMBERS: Final = {
    "correlation": names.CORRELATION_ID,
    "device": names.DEVICE_INDEX,
    "stream": names.STREAM_ID,
    "bytes": names.MEMCPY_SIZE,
}


class _Known(NamedTuple):
    """Facts about the events of a step that only the tables of whole windows contain."""

    whats: Mapping[tuple[str, str], tuple[str, str]]
    """Columns ``what`` and ``kind`` of table ``totals``, by category and name of an event."""
    directions: Mapping[str, str]
    """Direction of a copy, by its name."""


def count_step(tables: WindowTables, step: StepEvents) -> WindowTables:
    """Return the totals of a step, as rows of the tables ``totals``, ``streams`` and ``copies``.

    Args:
        tables: the rows of whole windows, which contain the kind of each event name.
        step: the stored events of the step. In the rows of streams, the step's duration takes the
            place of the window's duration.
    """
    known = _Known(
        {(row.category, row.name): (row.what, row.kind) for row in tables.totals},
        _directions(tables.copies),
    )
    digests = dict(step.windows)
    totals: list[TotalRow] = []
    streams: list[StreamRow] = []
    copies: list[CopyRow] = []
    for rank in sorted({row["rank"] for row in step.events}):
        of_rank = _count_rank([row for row in step.events if row["rank"] == rank], step, known)
        keys: dict[str, Any] = {"rank": rank, "digest": digests.get(rank, "")}
        length_ns = step.lengths_ns.get(rank, 0)
        totals += [replace(row, **keys) for row in of_rank.totals if row.stream != NONE]
        streams += [
            replace(row, window_ns=length_ns, **keys)
            for row in of_rank.streams
            if row.stream != NONE
        ]
        copies += [replace(row, **keys) for row in of_rank.copies]
    return WindowTables(totals=totals, streams=streams, copies=copies)


def _directions(copies: Sequence[CopyRow]) -> dict[str, str]:
    known: dict[str, set[str]] = {}
    for row in copies:
        known.setdefault(row.name, set()).add(row.direction)
    return {name: of.pop() if len(of) == 1 else OTHER for name, of in known.items()}


def _count_rank(rows: Sequence[_Event], step: StepEvents, known: _Known) -> WindowTables:
    stored = _stored(rows, known)
    trace, links = stored.trace, _links(stored)
    work = _work(stored)
    where = _attribution(stored, links, step)
    totals = window_totals(trace, links, work, where, _captured(stored))
    streams = [
        *measure_devices(trace, work, links.launch),
        *measure_streams(trace, work, links.launch),
    ]
    copies = _copies(trace, work, known.directions)
    return WindowTables(totals=totals, streams=streams, copies=copies)


class _Stored(NamedTuple):
    """Events of one rank: their stored rows and the same events as a trace, in the same order."""

    rows: Sequence[_Event]
    attributes: list[dict[str, Any]]
    kinds: list[str]
    """Kind of each event, as in table ``totals``."""
    trace: Trace


def _stored(rows: Sequence[_Event], known: _Known) -> _Stored:
    attributes = [json.loads(row["attributes"]) for row in rows]
    keys = [
        (of_event[names.PROFILER_ACTIVITY], row["name"])
        for row, of_event in zip(rows, attributes, strict=True)
    ]
    whats = [known.whats.get(key, ("", "")) for key in keys]
    roles = [
        _role(what, category, is_asynchronous=bool(of_event.get(names.ASYNCHRONOUS)))
        for (what, _), (category, _), of_event in zip(whats, keys, attributes, strict=True)
    ]
    trace = _trace(rows, attributes, keys, roles)
    return _Stored(rows, attributes, [kind for _, kind in whats], trace)


def _trace(
    rows: Sequence[Mapping[str, Any]],
    attributes: Sequence[Mapping[str, Any]],
    keys: Sequence[tuple[str, str]],
    roles: Sequence[Role],
) -> Trace:
    """Return the events as a trace; ``keys`` contains the category and name of each event."""
    categories, category = _indexed([category for category, _ in keys])
    of_names, name = _indexed([name for _, name in keys])
    start = np.array([row["start_ns"] for row in rows], np.int64)
    columns: dict[str, NDArray[Any]] = {
        column: np.array([of_event.get(key, NONE) for of_event in attributes], np.int64)
        for column, key in _NUMBERS.items()
    }
    columns |= {
        "start_ns": start,
        "duration_ns": np.array([row["end_ns"] for row in rows], np.int64) - start,
        "category": category,
        "name": name,
        "track": _indexed([row["track"] for row in rows])[1],
    }
    return Trace(
        path=Path(),
        events=_columns(Events, columns, len(rows)),
        names=of_names,
        categories=categories,
        tracks=[],
        flows=_columns(Flows, {}, 0),
        flow_kinds=[],
        allocations=_columns(Allocations, {}, 0),
        roles=np.array(roles, np.uint8),
    )


def _role(what: str, category: str, *, is_asynchronous: bool) -> Role:
    if what == KERNEL:
        return Role.DEVICE
    if is_asynchronous:
        return Role.SUMMARY
    if PYTHON_FUNCTION in (what or category):
        return Role.PYTHON
    return {OPERATOR: Role.OPERATOR, ANNOTATION: Role.ANNOTATION}.get(what, Role.HOST)


def _indexed(values: Sequence[Any]) -> tuple[list[Any], NDArray[np.int32]]:
    place = {value: at for at, value in enumerate(dict.fromkeys(values))}
    return list(place), np.array([place[value] for value in values], np.int32)


def _columns(kind: type[_Kind], columns: Mapping[str, NDArray[Any]], length: int) -> _Kind:
    missing = np.full(length, NONE, np.int64)
    return kind(**{field.name: columns.get(field.name, missing) for field in fields(kind)})


def _links(stored: _Stored) -> Links:
    rows, trace = stored.rows, stored.trace
    place = {row["span_id"]: at for at, row in enumerate(rows)}
    parent = np.array([place.get(row["parent_id"], NONE) for row in rows], np.int32)
    unknown = np.full(len(rows), NONE, np.int32)
    return Links(
        parent=parent,
        around=_nest(trace, parent),
        section=unknown,
        step=unknown,
        forward=unknown,
        launch=_launches(stored),
        place=np.full(len(rows), Place.ROOT, np.uint8),
        is_device=np.isin(find_roles(trace), IS_DEVICE),
        steps=[],
        orphans={},
    )


def _nest(trace: Trace, parent: NDArray[np.int32]) -> NDArray[np.int32]:
    events, roles = trace.events, find_roles(trace)
    rows = np.flatnonzero(~np.isin(roles, _NOT_NESTED))
    # In traces with whole microseconds, many intervals are equal: depth decides which one is outer.
    rank = _DEPTHS[roles[rows]] << 32 | Forest(parent).depth()[rows]
    parents = find_parents(
        events.track[rows], events.start_ns[rows], events.duration_ns[rows], rank
    )
    around = np.full(len(events), NONE, np.int32)
    around[rows] = np.append(rows, NONE)[parents]
    return around


def _launches(stored: _Stored) -> NDArray[np.int32]:
    calls: dict[int | str, int] = {}
    for at, (row, attributes) in enumerate(zip(stored.rows, stored.attributes, strict=True)):
        if not attributes.get(names.ASYNCHRONOUS):
            calls[row["span_id"]] = at
            if number := attributes.get(names.CORRELATION_ID):
                calls[number] = at
    launch = np.full(len(stored.rows), NONE, np.int32)
    for at in np.flatnonzero(find_roles(stored.trace) == Role.DEVICE).tolist():
        attributes = stored.attributes[at]
        key = attributes.get(names.LAUNCH) or attributes.get(names.CORRELATION_ID, 0)
        launch[at] = calls.get(key, NONE)
    return launch


def _work(stored: _Stored) -> Work:
    trace = stored.trace
    rows = np.flatnonzero(find_roles(trace) == Role.DEVICE)
    kind = np.array([WorkKind[stored.kinds[row].upper()] for row in rows.tolist()], np.uint8)
    device, stream = trace.events.device[rows], trace.events.stream[rows]
    # Without a device number, the stream number is ambiguous.
    return numbered_work(trace, rows, kind, device, np.where(device == NONE, NONE, stream))


def _attribution(stored: _Stored, links: Links, step: StepEvents) -> Attribution:
    trace, forest = stored.trace, Forest(links.parent)
    is_single = np.array([bool(kind) for kind in stored.kinds], np.bool_)
    is_step = np.array([row["name"] == step.name for row in stored.rows], np.bool_)
    is_section = (find_roles(trace) == Role.ANNOTATION) & ~(is_single | is_step)
    annotation = forest.nearest(is_section).tolist()
    sections = []
    for above, root in zip(annotation, forest.roots().tolist(), strict=True):
        section, is_whole = step.sections.get(stored.rows[root]["parent_id"], ("", True))
        named = stored.rows[above]["name"] if above != NONE and is_whole else ""
        sections.append(named or section)
    of_names = sorted({*sections} - {""})
    place = {name: at for at, name in enumerate(of_names)} | {"": NONE}
    first = np.zeros(len(sections), np.int32)
    return Attribution(
        section=np.array([place[name] for name in sections], np.int32),
        sections=of_names,
        step=first,
        steps=[step.name],
        phase=first if step.phase else first + NONE,
        phases=[step.phase],
    )


def _captured(stored: _Stored) -> ReplayedGraphs:
    operators = [of_event.get(names.CAPTURED_OPERATOR, "") for of_event in stored.attributes]
    known, index = _indexed(["", *operators])
    return ReplayedGraphs(None, index[1:] - 1, known[1:])


def _copies(trace: Trace, work: Work, directions: Mapping[str, str]) -> list[CopyRow]:
    mine = np.flatnonzero(work.kind == WorkKind.COPY)
    rows = work.rows[mine]
    ways = [WAYS.index(directions.get(name, OTHER)) for name in trace.names]
    way = np.array(ways, np.int64)[trace.events.name[rows]]
    return add_up_copies(trace, work, mine, way, trace.events.bytes[rows])
