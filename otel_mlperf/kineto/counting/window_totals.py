"""Totals of all events with the same name, stream, section, step or phase of a window.

The rows of sections, of steps and of phases each sum to the whole window: events outside of them
are a row with an empty name. The rows of operators also include

- work of a graph whose operator is known from a trace of the capture, with category *captured*: the
  operator used no host time during the replay, so the device work itself is counted;
- other device work that no operator launched, by launching call, with category *device*; the name
  is empty if the call is unknown;
- annotations inside operators, with category *annotation*, because their time is not part of any
  operator's self time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.intervals import sums
from otel_mlperf.kineto.counting.attribution import main_sections
from otel_mlperf.kineto.counting.device_work import WorkKind
from otel_mlperf.kineto.counting.totals import self_times, totals
from otel_mlperf.kineto.linking.collectives import is_collective
from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.reading.value_columns import narrowed
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.store.window_facts import (
    ANNOTATION,
    CAPTURED,
    KERNEL,
    ON_DEVICE,
    ON_HOST,
    OPERATOR,
)
from otel_mlperf.tables.window_tables import TotalRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.attribution import Attribution
    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.counting.replayed_graphs import ReplayedGraphs
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace

CALL: Final = "call"
PYTHON_FUNCTION: Final = "python"
OTHER: Final = "other"
STREAM: Final = "stream"
SECTION: Final = "section"
STEP: Final = "step"
PHASE: Final = "phase"
_WHAT: Final = {
    Role.OPERATOR: OPERATOR,
    Role.ANNOTATION: ANNOTATION,
    Role.PYTHON: PYTHON_FUNCTION,
    Role.CALL: CALL,
}


def window_totals(
    trace: Trace,
    links: Links,
    work: Work,
    where: Attribution,
    replayed: ReplayedGraphs | None = None,
) -> list[TotalRow]:
    """Return the totals of every event name, then of streams, sections, steps and phases."""
    own = self_times(trace, links.around)
    is_operator = find_roles(trace) == Role.OPERATOR
    launched_by = Forest(links.parent).nearest(is_operator)[work.rows]
    is_inside = Forest(links.around).nearest(is_operator) != NONE
    of_capture = np.full(len(work.rows), NONE, np.int32)
    if replayed is not None:
        of_capture = replayed.operator[work.rows]
        launched_by[of_capture != NONE] = NONE  # It contains the launch of the whole graph.
    alone = np.flatnonzero((launched_by == NONE) & (of_capture == NONE))
    return [
        *_by_name(trace, work, launched_by, where, own),
        *(_captured(work, of_capture, replayed.operators, where) if replayed else []),
        *_in_no_operator(trace, links, work, alone, where, own),
        *_annotations_inside(trace, is_inside, where, own),
        *_by_stream(trace, work),
        *_by_place(trace, work, np.flatnonzero(is_operator & ~is_inside), where, own),
    ]


def _by_name(
    trace: Trace,
    work: Work,
    launched_by: NDArray[np.int32],
    where: Attribution,
    own: NDArray[np.int64],
) -> list[TotalRow]:
    events, names = trace.events, len(trace.names)
    group = narrowed(events.category.astype(np.int64) * names + events.name)
    of_names = totals(group, events.duration_ns, own)
    is_known = launched_by != NONE
    launched = _added(group[launched_by[is_known]], _length_ns(work)[is_known])
    kinds = dict(_one_each(group[work.rows], work.kind))
    whats = {key: _WHAT.get(Role(role), OTHER) for key, role in _one_each(group, find_roles(trace))}
    main = main_sections(events.duration_ns, group, where.section)
    return [
        _total(
            what=KERNEL if key in kinds else whats[key],
            category=trace.categories[key // names],
            name=trace.names[key % names],
            kind=_kind(kinds.get(key), whats[key], trace.names[key % names]),
            section=where.sections[main[key][0]] if key in main else "",
            section_ns=main[key][1] if key in main else 0,
            device_ns=launched.get(key, 0),
            figures=figures,
        )
        for key, figures in of_names
    ]


def _captured(
    work: Work,
    of_capture: NDArray[np.int32],
    operators: list[str],
    where: Attribution,
) -> list[TotalRow]:
    """Return totals of replayed work by the operator that launched it during the capture."""
    known = np.flatnonzero(of_capture != NONE)
    group, rows, length_ns = of_capture[known], work.rows[known], _length_ns(work)[known]
    of_names = totals(group, length_ns, np.zeros_like(length_ns))
    main = main_sections(length_ns, group, where.section[rows])
    return _operators(operators, of_names, CAPTURED, where, main, _added(group, length_ns))


def _in_no_operator(
    trace: Trace,
    links: Links,
    work: Work,
    alone: NDArray[np.intp],
    where: Attribution,
    own: NDArray[np.int64],
) -> list[TotalRow]:
    """Return totals, by launching call, of the work in ``alone``, which no operator launched."""
    rows, length_ns = work.rows[alone], _length_ns(work)[alone]
    call = links.launch[rows]
    name = np.where(call == NONE, NONE, trace.events.name[call])
    counted, first = np.unique(np.where(call == NONE, rows, call), return_index=True)
    group = name[first]
    of_calls = totals(
        group, trace.events.duration_ns[counted], np.where(group == NONE, 0, own[counted])
    )
    main = main_sections(length_ns, name, where.section[rows])
    launched = _added(name, length_ns)
    return _operators(trace.names, of_calls, ON_DEVICE, where, main, launched)


def _annotations_inside(
    trace: Trace, is_inside: NDArray[np.bool_], where: Attribution, own: NDArray[np.int64]
) -> list[TotalRow]:
    rows = np.flatnonzero(is_inside & (find_roles(trace) == Role.ANNOTATION))
    name, duration_ns = trace.events.name[rows], trace.events.duration_ns[rows]
    main = main_sections(duration_ns, name, where.section[rows])
    of_names = totals(name, duration_ns, own[rows])
    return _operators(trace.names, of_names, ANNOTATION, where, main, {})


def _operators(
    names: Sequence[str],
    of_names: Iterable[tuple[int, dict[str, int]]],
    category: str,
    where: Attribution,
    main: dict[int, tuple[int, int]],
    launched: dict[int, int],
) -> list[TotalRow]:
    """Return rows that are listed among the operators although they are not operators.

    The keys of ``of_names``, ``main`` and ``launched`` are indices into ``names``.
    """
    return [
        _total(
            what=OPERATOR,
            category=category,
            name=names[key] if key != NONE else "",
            section=where.sections[main[key][0]] if key in main else "",
            section_ns=main[key][1] if key in main else 0,
            device_ns=launched.get(key, 0),
            figures=figures,
        )
        for key, figures in of_names
    ]


def _total(
    what: str,
    category: str,
    name: str,
    figures: dict[str, int],
    **more: Any,
) -> TotalRow:
    empty = {"device": None, "stream": None, "kind": "", "section": "", "section_ns": 0}
    about: dict[str, Any] = {**empty, "device_ns": 0, **more, **figures}
    return TotalRow(what=what, category=category, name=name, **about)


def _kind(of_work: int | None, what: str, name: str) -> str:
    if of_work is not None:
        return WorkKind(of_work).name.lower()
    is_communication = what == ANNOTATION and is_collective(name)
    return WorkKind.COMMUNICATION.name.lower() if is_communication else ""


def _one_each(
    group: NDArray[np.signedinteger[Any]], values: NDArray[np.uint8]
) -> Iterator[tuple[int, int]]:
    groups, first = np.unique(group, return_index=True)
    return zip(groups.tolist(), values[first].tolist(), strict=True)


def _added(group: NDArray[np.integer[Any]], values: NDArray[np.int64]) -> dict[int, int]:
    groups, place = np.unique(group, return_inverse=True)
    total = sums(values, place.reshape(-1), len(groups))
    return dict(zip(groups.tolist(), total.tolist(), strict=True))


def _length_ns(work: Work) -> NDArray[np.int64]:
    return work.end_ns - work.start_ns


def _by_stream(trace: Trace, work: Work) -> list[TotalRow]:
    length = _length_ns(work)
    of_streams = totals(work.stream, length, length)
    return [
        _total(
            what=STREAM,
            category=ON_DEVICE,
            name=f"device {work.streams[key][0]} stream {work.streams[key][1]}",
            device=work.streams[key][0],
            stream=work.streams[key][1],
            figures=figures,
        )
        for key, figures in of_streams
    ]


def _by_place(
    trace: Trace,
    work: Work,
    outermost: NDArray[np.intp],
    where: Attribution,
    own: NDArray[np.int64],
) -> list[TotalRow]:
    """Return totals of device work, and of outermost operators, by section, step and phase."""
    duration = trace.events.duration_ns
    of_places: list[TotalRow] = []
    for what, place, names in (
        (SECTION, where.section, where.sections),
        (STEP, where.step, where.steps),
        (PHASE, where.phase, where.phases),
    ):
        for category, rows in ((ON_DEVICE, work.rows), (ON_HOST, outermost)):
            of_names = totals(place[rows], duration[rows], own[rows])
            of_places += [
                _total(
                    what=what,
                    category=category,
                    name=names[key] if key != NONE else "",
                    figures=figures,
                )
                for key, figures in of_names
            ]
    return of_places
