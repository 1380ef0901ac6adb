"""Conversion of a trace file to spans and exact totals, for servers and for a run folder.

All callers use the same pipeline: read, link, count, choose, then write the requested output. The
output is reproducible: the same file always results in the same bytes.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.kineto.counting.collective_totals import count_collectives
from otel_mlperf.kineto.counting.completeness import find_completeness
from otel_mlperf.kineto.counting.launched_work import find_launches
from otel_mlperf.kineto.counting.replayed_graphs import match_replays
from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.counting.window_rows import tables_of
from otel_mlperf.kineto.linking.collectives import collectives
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.linking.sections import read_sections
from otel_mlperf.kineto.reading.trace_reader import MAX_BYTES, read_details, read_trace
from otel_mlperf.kineto.spans.budget import Budget, choose
from otel_mlperf.kineto.spans.critical_path import critical_path
from otel_mlperf.kineto.spans.event_attributes import collective_attributes, own_attributes
from otel_mlperf.kineto.spans.event_rows import event_rows
from otel_mlperf.kineto.spans.event_spans import Spans
from otel_mlperf.kineto.spans.trace_assignment import find_assignment
from otel_mlperf.otlp import wire
from otel_mlperf.otlp.span_content import OWN_SCOPE
from otel_mlperf.otlp.span_encoding import cut, encode_spans, span_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from otel_mlperf.journal.profiler_windows import Window
    from otel_mlperf.kineto.counting.captured_graphs import CapturedGraphs
    from otel_mlperf.kineto.counting.replayed_graphs import ReplayedGraphs
    from otel_mlperf.kineto.counting.window_numbers import WindowNumbers
    from otel_mlperf.kineto.linking.collectives import Collective
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.spans.budget import SpanPlan
    from otel_mlperf.kineto.spans.trace_assignment import Assignment
    from otel_mlperf.kineto.trace_events import Trace
    from otel_mlperf.settings.trace_sampler import Sampler
    from otel_mlperf.store.window_facts import CollectiveTotal, WindowCompleteness

REQUEST_BYTES: Final = 2 << 20
_ROUNDS: Final = 8
_MIN_SPANS: Final = 1


_MMAP_THRESHOLD: Final = -3
"""``M_MMAP_THRESHOLD`` of glibc."""
_LARGE_BYTES: Final = 1 << 20


def return_freed_memory() -> None:
    """Make the allocator return freed memory to the system immediately.

    By default, glibc keeps freed blocks of up to 32 MiB for reuse. The setting applies to the whole
    process: call this only in a process that converts a trace and then exits.
    """
    with suppress(OSError, AttributeError, TypeError):  # Not glibc, or no C library (Windows).
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)


@dataclass(frozen=True)
class Conversion:
    """Result of ``convert``: the trace, its links, its spans and its exact totals."""

    trace: Trace
    links: Links
    sections: Sections | None
    spans: Spans
    window: Window | None
    rank: int
    restart: int
    completeness: WindowCompleteness
    of_collectives: list[CollectiveTotal]
    replayed: ReplayedGraphs | None = None
    """Operators of replayed CUDA graphs; None if no trace of their capture was given."""

    @cached_property
    def numbers(self) -> WindowNumbers:
        """Exact totals of the window, computed on first access, because spans do not need them."""
        return count(
            self.trace,
            self.links,
            self.sections,
            self.window,
            self.completeness,
            self.replayed,
            self.of_collectives,
        )

    @property
    def is_empty(self) -> bool:
        """Return whether the file contains neither events nor allocations."""
        return not (len(self.trace.events) or len(self.trace.allocations))

    @property
    def events(self) -> int:
        """Number of events that have a span of their own or that a roll-up span represents."""
        return int((~self.spans.places.hidden).sum())

    @property
    def kept(self) -> int:
        """Number of events that have a span of their own."""
        return int(self.spans.plan.kept.sum())

    @property
    def roll_ups(self) -> int:
        """Number of roll-up spans, each of which represents several events."""
        return len(self.spans.plan.roll_ups)

    @property
    def rolled_up(self) -> int:
        """Number of events that roll-up spans represent."""
        return int(self.spans.plan.roll_ups.count.sum())

    def sampled(self, sampler: Sampler) -> Conversion:
        """Return a copy with only the spans of the traces that ``sampler`` selects."""
        spans = self.spans
        return replace(self, spans=replace(spans, plan=spans.plan.sampled(spans.places, sampler)))


def convert(  # noqa: PLR0913 - all that may be known of a trace beside its text
    path: Path,
    budget: Budget | Callable[[Trace], Budget] | None = None,
    *,
    window: Window | None = None,
    run_folder: Path | None = None,
    run_id: str = "",
    rank: int | None = None,
    captured: CapturedGraphs | None = None,
    max_bytes: int = MAX_BYTES,
    progress: Callable[[int], None] | None = None,
) -> Conversion:
    """Convert one trace file to spans; its exact totals are computed on first access.

    Args:
        path: the trace file.
        budget: maximum amount of spans to send, or a function that returns it for the trace.
        window: the recorder's description of the profiler window, if the trace belongs to a run.
        run_folder: folder of that run, from which the recorded sections are read.
        run_id: id of the run to which a trace without a ``window`` is added.
        rank: rank to assume if neither ``window`` nor the trace records one (default: 0).
        captured: CUDA graphs that the trace may replay, from a trace of their capture.
        max_bytes: maximum uncompressed size to read; the remainder is ignored.
        progress: called repeatedly with the number of bytes read so far.

    Raises:
        TraceError: no part of the file can be read.
        StoreError: the recorded sections cannot be read.
    """
    trace = read_trace(path, max_bytes=max_bytes, progress=progress)
    sections = None
    if window is not None and run_folder is not None:
        sections = read_sections(run_folder, window)
    links = link(trace, sections)
    budget = budget(trace) if callable(budget) else budget or Budget()
    places = find_assignment(trace, links, sections, window, run_id=run_id, whole=budget.is_whole)
    completeness = find_completeness(trace, links)
    reported = window.problem if window is not None else ""
    problem = "; ".join(filter(None, (reported, completeness.words)))
    known_collectives = collectives(trace, links)
    ratio = completeness.ratio
    spans = _chosen(trace, links, places, budget, problem, ratio, known_collectives)
    replayed = match_replays(trace, links, captured) if captured is not None else None
    known = window.rank if window is not None else trace.rank
    return Conversion(
        trace=trace,
        links=links,
        sections=sections,
        spans=replace(spans, replayed=replayed),
        window=window,
        rank=known if known is not None else rank or 0,
        restart=window.restart if window is not None else 0,
        completeness=completeness,
        of_collectives=count_collectives(trace, known_collectives),
        replayed=replayed,
    )


def _chosen(
    trace: Trace,
    links: Links,
    places: Assignment,
    budget: Budget,
    problem: str,
    ratio: float,
    known_collectives: dict[int, Collective],
) -> Spans:
    """Choose the spans to send, with their attributes; drop spans until the byte budget is met."""
    critical = critical_path(trace, links)
    room = None if budget.is_whole else budget.of(places)
    plan = choose(trace, places, room, critical)
    places.forest.forget_levels()
    own = _own_attributes(trace, links, plan, ratio, known_collectives)
    spans = Spans(trace, links, places, plan, own, problem)
    if budget.bytes is None:
        return spans
    # The encoded size depends on which spans are chosen. Each round therefore scales the number of
    # spans of an oversized trace down by its excess and another 5 %.
    for _ in range(_ROUNDS):
        used = _bytes_of_traces(spans)
        if (used <= budget.bytes).all() or room is None:
            break
        have = _spans_of_traces(spans)
        fewer = (have * (budget.bytes / np.maximum(used, 1)) * 0.95).astype(np.int64)
        room = np.where(used > budget.bytes, np.maximum(fewer, _MIN_SPANS), room)
        spans = replace(spans, plan=choose(trace, places, room, critical))
    return spans


def _own_attributes(
    trace: Trace,
    links: Links,
    plan: SpanPlan,
    ratio: float,
    known_collectives: dict[int, Collective],
) -> dict[int, dict[str, Any]]:
    rows = np.flatnonzero(plan.kept).tolist()
    own = {
        row: own_attributes(trace.names[trace.events.name[row]], args)
        for row, args in read_details(trace, rows).items()
    }
    for row, collective in known_collectives.items():
        if row in own:
            kernel_ns = int(trace.events.duration_ns[row]) if links.is_device[row] else None
            own[row] |= collective_attributes(collective, kernel_ns)
    for row in np.flatnonzero(plan.kept & (find_roles(trace) == Role.WINDOW)).tolist():
        own[row][names.PROFILER_COMPLETENESS] = ratio
    return {row: attributes for row, attributes in own.items() if attributes}


def _bytes_of_traces(spans: Spans) -> NDArray[np.int64]:
    total = np.zeros(len(spans.places.traces), np.int64)
    rows = np.flatnonzero(spans.plan.kept)
    groups = [spans.places.trace[part] for part, _ in spans.by_numbers(rows)]
    groups.append(spans.places.anchor_trace[spans.plan.roll_ups.anchor])
    for group, columns in zip(groups, [*spans.kept(), spans.roll_ups()], strict=True):
        np.add.at(total, group, span_sizes(columns))
    return total


def _spans_of_traces(spans: Spans) -> NDArray[np.int64]:
    many = len(spans.places.traces)
    kept = np.bincount(spans.places.trace[spans.plan.kept], minlength=many)
    anchors = spans.places.anchor_trace[spans.plan.roll_ups.anchor]
    return (kept + np.bincount(anchors, minlength=many)).astype(np.int64)


def requests(conversion: Conversion, resource: Mapping[str, object]) -> Iterator[tuple[int, bytes]]:
    """Yield the number of spans (roll-ups excluded) and the encoded body of each OTLP request."""
    who, scope = wire.encode_resource(resource), OWN_SCOPE.encode()
    pieces = [(columns, True) for columns in conversion.spans.kept()]
    pieces.append((conversion.spans.roll_ups(), False))
    waiting, items = b"", 0
    for columns, are_items in pieces:
        for piece in cut(columns, REQUEST_BYTES):
            body = encode_spans(who, scope, piece, names.SCHEMA_URL)
            # Columns with different attributes are encoded separately; small ones share a request.
            if waiting and len(waiting) + len(body) > REQUEST_BYTES:
                yield items, waiting
                waiting, items = b"", 0
            # Concatenated requests are one valid request.
            waiting, items = waiting + body, items + len(piece) * are_items
    if waiting:
        yield items, waiting


def sent_rows(conversion: Conversion) -> Iterator[dict[str, Any]]:
    """Yield the spans that a server would receive, as rows of table ``spans``."""
    return stored_rows(conversion, only_sent=True)


def stored_rows(conversion: Conversion, *, only_sent: bool = False) -> Iterator[dict[str, Any]]:
    """Yield rows of table ``spans`` for all events or, with ``only_sent``, for spans to send."""
    pieces = event_rows(
        conversion.spans,
        conversion.rank,
        conversion.restart,
        conversion.window,
        only_sent=only_sent,
    )
    for columns in pieces:
        values = [_listed(column) for column in columns.values()]
        yield from (dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True))


def _listed(column: Any) -> list[Any]:
    if isinstance(column, list):
        return column
    values: list[Any] = column.tolist()  # Works for arrays of numpy and of pyarrow.
    return values


def store(conversion: Conversion, run_folder: Path) -> None:
    """Write the rows of all tables into a run folder; replace earlier rows of the same trace.

    Raises:
        StoreError: writing to the disk fails.
    """
    from otel_mlperf.store.part_writer import write_part, write_pieces
    from otel_mlperf.store.parts import window_host

    host = window_host(conversion.trace.digest)
    launches = find_launches(
        conversion.trace, conversion.links, conversion.sections, conversion.replayed
    )
    tables = tables_of(
        conversion.trace,
        conversion.numbers,
        conversion.links.orphans,
        launches,
        window=conversion.window,
        rank=conversion.rank,
    )
    for table, columns in tables.items():
        write_part(run_folder, table, host, 1, columns)
    pieces = event_rows(conversion.spans, conversion.rank, conversion.restart, conversion.window)
    write_pieces(run_folder, "spans", host, 1, pieces)
