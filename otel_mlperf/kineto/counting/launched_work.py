"""Launched work: each kernel's operator, section, input shapes and launch dimensions.

Two windows are compared by these rows, because kernels of the same name do different work in
different operators and sections. Shapes are those of the operator's inputs, if the profiler
recorded them. Launch dimensions, or the bytes of a copy or collective, are those of the device
event itself.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.intervals import sums
from otel_mlperf.kineto.counting.attribution import find_attribution
from otel_mlperf.kineto.counting.device_work import WorkKind, find_work
from otel_mlperf.kineto.linking.collectives import collectives
from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.linking.sections import no_sections
from otel_mlperf.kineto.reading.trace_reader import each_detail
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.tables.window_tables import LaunchRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.counting.replayed_graphs import ReplayedGraphs
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.trace_events import Trace

MAX_WORK: Final = 200_000
"""With more device events, no ``args`` are read, because each event costs about 10 µs."""
_LONGEST: Final = 400


def find_launches(
    trace: Trace,
    links: Links,
    sections: Sections | None = None,
    replayed: ReplayedGraphs | None = None,
) -> list[LaunchRow]:
    """Return the count and total time of device work by name, section, operator, inputs, launch.

    Raises:
        TraceError: the trace file cannot be read again.
    """
    work = find_work(trace)
    if not len(work.rows):
        return []
    launched_by = Forest(links.parent).nearest(find_roles(trace) == Role.OPERATOR)[work.rows]
    operators = list(trace.names)
    operator = np.where(launched_by == NONE, NONE, trace.events.name[launched_by])
    if replayed is not None:  # Operators around the launch contain the whole graph.
        captured = replayed.operator[work.rows]
        operator = np.where(captured == NONE, operator, captured + len(operators))
        launched_by = np.where(captured == NONE, launched_by, NONE)
        operators += replayed.operators
    where = find_attribution(trace, links, sections or no_sections())
    text_by_row = _read(trace, links, work, launched_by) if len(work.rows) <= MAX_WORK else {}
    texts = sorted(set(text_by_row.values()))
    place = {text: at for at, text in enumerate(texts)}
    text_of = {row: place[text] for row, text in text_by_row.items()}
    parts: list[NDArray[Any]] = [
        trace.events.name[work.rows].astype(np.int64),
        where.section[work.rows],
        operator,
        np.array([text_of.get(row, NONE) for row in launched_by.tolist()]),
        np.array([text_of.get(row, NONE) for row in work.rows.tolist()]),
    ]
    keys, group, count = np.unique(
        np.stack(parts, axis=1), axis=0, return_inverse=True, return_counts=True
    )
    total = sums(work.end_ns - work.start_ns, group.reshape(-1), len(keys))
    labels = (trace.names, where.sections, operators, texts, texts)
    found = []
    for key, calls, spent in zip(keys.tolist(), count.tolist(), total.tolist(), strict=True):
        values = ("" if at == NONE else known[at] for at, known in zip(key, labels, strict=True))
        name, section, by, given, launch = values
        found.append(
            LaunchRow(
                name=name,
                section=section,
                operator=by,
                inputs=given,
                launch=launch,
                count=calls,
                total_ns=spent,
            )
        )
    return found


def _read(trace: Trace, links: Links, work: Work, launched_by: NDArray[np.int32]) -> dict[int, str]:
    """Return, by row, the inputs of an operator, or size or launch dimensions of device work."""
    text_by_row = {row: f"{size} bytes" for row, size in _sizes(trace, links, work).items()}
    operators = set(launched_by.tolist()) - {NONE}
    # The grid is not read for copies and collectives, because it does not depend on the size.
    kernels = set(work.rows.tolist()) - text_by_row.keys()
    for row, args in each_detail(trace, [*operators, *kernels]):
        if text := _inputs(args) if row in operators else _launch(args):
            text_by_row[row] = text
    return text_by_row


def _sizes(trace: Trace, links: Links, work: Work) -> dict[int, int]:
    size = trace.events.bytes[work.rows]
    known = np.flatnonzero(size != NONE)
    sizes = dict(zip(work.rows[known].tolist(), size[known].tolist(), strict=True))
    if (work.kind == WorkKind.COMMUNICATION).any():
        rows = set(work.rows.tolist())
        for row, collective in collectives(trace, links).items():
            if row in rows and collective.message_bytes is not None:
                sizes[row] = collective.message_bytes
    return sizes


def _inputs(args: Mapping[str, Any]) -> str:
    """Return shapes and types as text, e.g. ``[[64, 8]] ["float"]``; empty if there is no shape."""
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not (isinstance(shapes, list) and any(shapes)):
        return ""
    return " ".join(json.dumps(part) for part in (shapes, types) if part)[:_LONGEST]


def _launch(args: Mapping[str, Any]) -> str:
    known = [f"{part} {json.dumps(args[part])}" for part in ("grid", "block") if args.get(part)]
    return ", ".join(known)[:_LONGEST]
