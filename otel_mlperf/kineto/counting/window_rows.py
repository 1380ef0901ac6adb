"""Rows of a counted profiler window for the tables of its run folder.

Every row contains the digest of the trace. The digest is also part of the file names, so that a
repeated import of a window replaces the rows of the earlier import.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict, replace

from otel_mlperf.kineto.counting.window_totals import STEP
from otel_mlperf.tables import ROWS
from otel_mlperf.tables.row import transposed
from otel_mlperf.tables.window_tables import CompletenessRow, WindowRow, WindowTables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.journal.profiler_windows import Window
    from otel_mlperf.kineto.counting.window_numbers import WindowNumbers
    from otel_mlperf.kineto.trace_events import Trace
    from otel_mlperf.store.window_facts import WindowCompleteness
    from otel_mlperf.tables.window_tables import LaunchRow, OfWindow


def tables_of(
    trace: Trace,
    numbers: WindowNumbers,
    orphans: dict[str, int],
    launches: Sequence[LaunchRow] = (),
    *,
    window: Window | None = None,
    rank: int | None = None,
) -> dict[str, dict[str, list[Any]]]:
    """Return the columns of each table of a window, for ``store.part_writer.write_part``.

    The parameters are those of ``rows_of``; tables without rows are omitted.
    """
    tables = asdict(rows_of(trace, numbers, orphans, launches, window=window, rank=rank))
    return {table: transposed(ROWS[table], rows) for table, rows in tables.items() if rows}


def rows_of(
    trace: Trace,
    numbers: WindowNumbers,
    orphans: dict[str, int],
    launches: Sequence[LaunchRow] = (),
    *,
    window: Window | None = None,
    rank: int | None = None,
) -> WindowTables:
    """Return the rows of all tables of a profiler window.

    Rank and restart are those of ``window``. Without a window, the rank is ``rank`` or, if that is
    None, the rank in the trace (0 if missing), and restart is 0. ``orphans`` contains the number of
    unlinked or contradictory events, by kind.
    """
    of_trace = trace.rank or 0 if rank is None else rank
    keys: dict[str, Any] = {
        "rank": of_trace if window is None else window.rank,
        "restart": 0 if window is None else window.restart,
        "digest": trace.digest,
    }
    tables: dict[str, Sequence[OfWindow]] = {
        "windows": [_window(trace, numbers, orphans, window)],
        "completeness": [_completeness(numbers.completeness)],
        "totals": numbers.totals,
        "launches": launches,
        "streams": [*numbers.devices, *numbers.streams],
        "copies": numbers.copies,
        "gaps": numbers.gaps,
        "allocator": numbers.memory,
    }
    named: dict[str, Any] = {
        table: [replace(row, **keys) for row in rows] for table, rows in tables.items()
    }
    return WindowTables(**named)


def _window(
    trace: Trace, numbers: WindowNumbers, orphans: dict[str, int], window: Window | None
) -> WindowRow:
    return WindowRow(
        number=None if window is None else window.number,
        trace=trace.path.name,
        start_ns=numbers.start_ns,
        end_ns=numbers.end_ns,
        is_unix_time=trace.is_unix_time,
        steps=json.dumps(_steps_with_events(numbers)),
        categories=json.dumps(numbers.categories),
        orphans=json.dumps(orphans),
        collectives=_json(numbers.collectives),
        unknown_rows=_json(numbers.unknown_rows),
        captured=_json(numbers.replayed.facts) if numbers.replayed else None,
        damage=json.dumps(trace.damage),
    )


def _completeness(facts: WindowCompleteness) -> CompletenessRow:
    in_json = {"losses": _json(facts.losses), "whole": _json(facts.whole)}
    return CompletenessRow(**(asdict(facts) | in_json))


def _json(facts: object) -> str:
    return msgspec.json.encode(facts).decode()


def _steps_with_events(numbers: WindowNumbers) -> list[str]:
    """Return the steps with events: a step that ends just after the profiler starts has none."""
    known = {total.name for total in numbers.totals if total.what == STEP}
    return [name for name in numbers.steps if name in known]
