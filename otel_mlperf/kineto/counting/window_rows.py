"""Rows of a counted window for the tables of its run folder.

Every row contains the digest of the trace. Parts named by this digest replace each other, so that
a window that is imported twice is stored once.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from otel_mlperf.kineto.counting.streams import Delays, Stream
from otel_mlperf.kineto.counting.totals import Figures
from otel_mlperf.kineto.counting.window_totals import STEP, WindowTotal
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.store.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.journal.profiler_windows import Window
    from otel_mlperf.kineto.counting.allocator_memory import Memory
    from otel_mlperf.kineto.counting.window_losses import Completeness
    from otel_mlperf.kineto.counting.window_numbers import WindowNumbers
    from otel_mlperf.kineto.trace_events import Trace

_OF_TOTAL: Final = tuple(column.name for column in fields(WindowTotal) if column.name != "figures")
_OF_FIGURES: Final = tuple(column.name for column in fields(Figures))
Row = dict[str, Any]
Columns = dict[str, list[Any]]


def tables_of(
    trace: Trace,
    numbers: WindowNumbers,
    orphans: dict[str, int],
    *,
    window: Window | None = None,
    rank: int | None = None,
) -> dict[str, Columns]:
    """Return the columns of each table of a window, for ``store.writer.write_part``.

    Rank and restart are those of the ``window``; for a trace without one, ``rank`` or else the
    trace's own or else 0.
    """
    return {
        table: _columns(table, rows)
        for table, rows in rows_of(trace, numbers, orphans, window=window, rank=rank).items()
        if rows
    }


def rows_of(
    trace: Trace,
    numbers: WindowNumbers,
    orphans: dict[str, int],
    *,
    window: Window | None = None,
    rank: int | None = None,
) -> dict[str, list[Row]]:
    """Return the rows of each table of a window, in the form of a query over the store."""
    of_trace = trace.rank or 0 if rank is None else rank
    common = {
        "rank": of_trace if window is None else window.rank,
        "restart": 0 if window is None else window.restart,
        "digest": trace.digest,
    }
    rows: dict[str, Iterable[Row]] = {
        "windows": [_window(trace, numbers, orphans, window)],
        "completeness": [_completeness(numbers.completeness)],
        "totals": map(_total, numbers.totals),
        "streams": map(_stream, [*numbers.devices, *numbers.streams]),
        "copies": map(asdict, numbers.copies),
        "gaps": (gap._asdict() for gap in numbers.gaps),
        "allocator": (point for memory in numbers.memory for point in _timeline(memory)),
    }
    return {table: [common | row for row in given] for table, given in rows.items()}


def _window(
    trace: Trace, numbers: WindowNumbers, orphans: dict[str, int], window: Window | None
) -> Row:
    return {
        "number": None if window is None else window.number,
        "trace": trace.path.name,
        "start_ns": numbers.start_ns,
        "end_ns": numbers.end_ns,
        "is_unix_time": trace.is_unix_time,
        "steps": json.dumps(_steps_with_events(numbers)),
        "categories": json.dumps(numbers.categories),
        "orphans": json.dumps(orphans),
        "collectives": _json(numbers.collectives),
        "unknown_rows": _json(numbers.unknown_rows),
        "captured": _json(numbers.replayed.facts) if numbers.replayed else None,
        "damage": json.dumps(trace.damage),
    }


def _completeness(completeness: Completeness) -> Row:
    facts = completeness.facts()
    return structs.asdict(facts) | {"losses": _json(facts.losses), "whole": _json(facts.whole)}


def _json(facts: object) -> str:
    return msgspec.json.encode(facts).decode()


def _steps_with_events(numbers: WindowNumbers) -> list[str]:
    """Return the steps that contain events: a profiler may start at the end of a step."""
    known = {total.name for total in numbers.totals if total.what == STEP}
    return [name for name in numbers.steps if name in known]


def _total(total: WindowTotal) -> Row:
    # Field by field: ``asdict`` copies each value, which took two thirds of the time for a name.
    row = {name: getattr(total, name) for name in _OF_TOTAL}
    return row | {name: getattr(total.figures, name) for name in _OF_FIGURES}


def _stream(stream: Stream) -> Row:
    row = {
        column.name: getattr(stream, column.name)
        for column in fields(Stream)
        if column.name != "delays"
    }
    delays = stream.delays
    counts = {"launches": delays.launches, "early": delays.early}
    return row | counts | {f"delay_{name}": getattr(delays, name) for name in Delays._fields[2:]}


def _timeline(memory: Memory) -> Iterable[Row]:
    columns = (memory.time_ns, memory.allocated, memory.peak, memory.reserved, memory.change)
    for time_ns, allocated, peak, reserved, change in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        yield {
            "device_type": memory.device_type,
            "device": memory.device,
            "time_ns": time_ns,
            "allocated_bytes": _said(allocated),
            "peak_bytes": _said(peak),
            "reserved_bytes": _said(reserved),
            "change_bytes": change,
        }


def _said(value: int) -> int | None:
    return None if value == NONE else value


def _columns(table: str, rows: list[Row]) -> Columns:
    return {column.name: [row[column.name] for row in rows] for column in TABLES[table]}
