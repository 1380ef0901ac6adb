"""Size limit of a run folder: removal of the oldest parts.

The oldest profiler windows are removed first, then the oldest spans. They are examples, and the
newest ones matter. Only when none are left are the oldest per-step sections removed, and last the
steps. The newest part of a table is never removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from otel_mlperf.store.parts import live_parts, table_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_mlperf.store.parts import TablePart

_ORDER: Final = ("spans", "readings", "sections", "values", "marks", "durations", "steps")
_SPANS: Final = 1
"""Index of windows and the first table: removed spans of these are counted."""


def trim(folder: Path, host: str, most_bytes: int, windows: Sequence[str] = ()) -> int:
    """Remove parts of ``host`` until its tables need at most ``most_bytes``.

    ``windows`` stand for the host in parts of its profiler windows, the oldest first. Return the
    number of removed spans of sections and events (no roll-ups, no segments).
    """
    by_window = [part for window in windows for part in _own(folder, "spans", window)]
    parts = [by_window, *(_own(folder, table, host) for table in _ORDER)]
    size = sum(part.path.stat().st_size for of_table in parts for part in of_table)
    removed = 0
    for place, of_table in enumerate(parts):
        # The newest part is kept whatever its size: a user may be viewing it.
        for part in of_table[:-1]:
            if size <= most_bytes:
                return removed
            size -= part.path.stat().st_size
            removed += _items(part) if place <= _SPANS else 0
            part.path.unlink(missing_ok=True)
    return removed


def _own(folder: Path, table: str, host: str) -> list[TablePart]:
    """Return the parts of ``host``, oldest first."""
    return live_parts(table_folder(folder, table), host)


def _items(part: TablePart) -> int:
    """Count the spans of a part; 0 for a damaged part, whose count is unknown."""
    try:
        kinds: list[str] = pq.read_table(part.path, columns=["kind"])["kind"].to_pylist()
    except (OSError, pa.ArrowException):
        return 0
    return kinds.count("section") + kinds.count("event")
