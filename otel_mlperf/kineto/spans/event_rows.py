"""Rows of the table ``spans`` for the events of a trace.

Every event becomes a row of kind *event*, independent of the budget; ``kept`` is *profiled* if the
event was sent as a span. Roll-ups that were sent are rows of kind *event_rollup*; the events that
they represent are rows, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.kineto.spans.event_spans import NO_THREAD
from otel_mlperf.kineto.spans.rollups import roll_up_numbers
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from otel_mlperf.journal.profiler_windows import Window, WindowStep
    from otel_mlperf.kineto.spans.event_spans import Spans

EVENT: Final = "event"
EVENT_ROLL_UP: Final = "event_rollup"
PROFILED: Final = "profiled"
_ROWS: Final = 1 << 16
"""Number of rows converted to text at a time."""
Columns = dict[str, Any]


def event_rows(
    spans: Spans,
    rank: int,
    restart: int = 0,
    window: Window | None = None,
    *,
    only_sent: bool = False,
) -> Iterator[Columns]:
    """Yield columns of table ``spans`` in pieces: all (or only sent) events, then roll-ups."""
    steps = _steps(spans, window)
    shown = np.flatnonzero(spans.plan.kept if only_sent else ~spans.places.hidden)
    for begin in range(0, len(shown), _ROWS):
        for rows, ints in spans.by_numbers(shown[begin : begin + _ROWS]):
            for part, own in _kept_apart(spans, rows):
                chosen = {key: column[part] for key, column in ints.items()}
                yield _events(spans, rows[part], chosen, own) | _common(
                    rank, restart, spans.places.trace[rows[part]], steps
                )
    if len(spans.plan.roll_ups):
        yield _roll_ups(spans) | _common(
            rank, restart, spans.places.anchor_trace[spans.plan.roll_ups.anchor], steps
        )


def _kept_apart(spans: Spans, rows: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], bool]]:
    """Yield positions in ``rows`` and whether these rows can have own attributes or links."""
    own = spans.plan.kept[rows] | (spans.links.forward[rows] != NONE) | spans.launched_apart[rows]
    for which in (True, False):
        part = np.flatnonzero(own == which)
        if len(part):
            yield part, which


def _events(
    spans: Spans, rows: NDArray[np.intp], ints: dict[str, NDArray[np.int64]], own: bool
) -> Columns:
    from otel_mlperf.store import text_columns

    events, trace, places = spans.trace.events, spans.trace, spans.places
    start = events.start_ns[rows]
    known, tail = spans.tails(rows)
    constant = [spans.constant(row) for row in known.tolist()]
    if own:
        attributes: Any = _attributes(spans, rows, ints, [other for _, other in constant], tail)
    else:
        inner = text_columns.words([_inner_json(other) for _, other in constant], tail)
        attributes = text_columns.json_text(ints, inner)
    track, on_host = events.track[rows], ~spans.links.is_device[rows]
    known_threads = on_host & (spans.threads[track] != NO_THREAD)
    return {
        "trace_id": text_columns.hex_text(spans.trace_ids[places.trace[rows]]),
        "span_id": text_columns.span_hex(spans.ids[rows]),
        "parent_id": text_columns.span_hex(spans.parents[rows]),
        "name": text_columns.words(trace.names, events.name[rows]),
        "category": text_columns.words(
            [shared[names.SECTION_CATEGORY] for shared, _ in constant], tail
        ),
        # Streams have no thread id, so that a negative number identifies them.
        "track": np.where(
            known_threads, spans.threads[track], NO_THREAD - 1 - track.astype(np.int64)
        ),
        "thread": text_columns.words(
            [timeline_track.thread for timeline_track in trace.tracks], track
        ),
        "thread_id": text_columns.where(known_threads, spans.threads[track]),
        "start_ns": start,
        "end_ns": start + events.duration_ns[rows],
        "kept": text_columns.words(["", PROFILED], spans.plan.kept[rows].astype(np.int64)),
        "attributes": attributes,
        "links": _links(spans, rows) if own else text_columns.same("[]", len(rows)),
        "kind": text_columns.same(EVENT, len(rows)),
    }


def _attributes(
    spans: Spans,
    rows: NDArray[np.intp],
    ints: dict[str, NDArray[np.int64]],
    constant: list[dict[str, Any]],
    tail: NDArray[np.int32],
) -> list[str]:
    numbers = {key: column.tolist() for key, column in ints.items()}
    return [
        json.dumps(
            constant[tail[place]]
            | {key: column[place] for key, column in numbers.items()}
            | spans.own.get(row, {})
            | spans.launch_of(row),
            ensure_ascii=False,
        )
        for place, row in enumerate(rows.tolist())
    ]


def _links(spans: Spans, rows: NDArray[np.intp]) -> list[str]:
    return [
        json.dumps([[link.trace_id.hex(), f"{link.span_id:016x}"] for link in spans.links_of(row)])
        for row in rows.tolist()
    ]


def _roll_ups(spans: Spans) -> Columns:
    from otel_mlperf.store import text_columns

    roll_ups = spans.plan.roll_ups
    known, index = spans.described
    described = [known[at] for at in index.tolist()]
    numbers = {key: column.tolist() for key, column in roll_up_numbers(roll_ups).items()}
    own = (names.SECTION_CATEGORY, names.ML_PHASE)
    return {
        "trace_id": text_columns.hex_text(
            spans.trace_ids[spans.places.anchor_trace[roll_ups.anchor]]
        ),
        "span_id": text_columns.span_hex(spans.roll_up_ids),
        "parent_id": text_columns.span_hex(spans.above_roll_ups),
        "name": [name for name, _ in described],
        "category": [attributes[names.SECTION_CATEGORY] for _, attributes in described],
        "track": np.full(len(roll_ups), NO_THREAD, np.int64),
        "thread": text_columns.same("", len(roll_ups)),
        "thread_id": text_columns.known([None], np.zeros(len(roll_ups), np.int64)),
        "start_ns": roll_ups.start_ns,
        "end_ns": roll_ups.end_ns,
        "kept": text_columns.same(PROFILED, len(roll_ups)),
        "attributes": [
            json.dumps(
                {key: value for key, value in attributes.items() if key not in own}
                | {key: column[place] for key, column in numbers.items()},
                ensure_ascii=False,
            )
            for place, (_, attributes) in enumerate(described)
        ],
        "links": text_columns.same("[]", len(roll_ups)),
        "kind": text_columns.same(EVENT_ROLL_UP, len(roll_ups)),
    }


def _steps(spans: Spans, window: Window | None) -> list[WindowStep | None]:
    known = {step.trace: step for step in window.steps} if window is not None else {}
    return [known.get(trace.hex()) for trace in spans.places.traces]


def _common(
    rank: int, restart: int, trace: NDArray[np.int32], steps: Sequence[WindowStep | None]
) -> Columns:
    from otel_mlperf.store import text_columns

    rows = len(trace)
    return {
        "rank": np.full(rows, rank, np.int32),
        "restart": np.full(rows, restart, np.int32),
        "phase": text_columns.words([step.phase if step else "" for step in steps], trace),
        "status": text_columns.same("unset", rows),
        "interrupted": [False] * rows,
        "root_id": text_columns.words([step.span if step else "" for step in steps], trace),
        "n": text_columns.known([step.n if step else None for step in steps], trace),
        "number": text_columns.known([step.number if step else None for step in steps], trace),
    }


def _inner_json(attributes: dict[str, Any]) -> str:
    return json.dumps(attributes, ensure_ascii=False)[1:-1]
