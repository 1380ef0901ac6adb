"""What goes first when a run folder has reached its size?

The oldest spans: they are examples, and the newest ones matter. Only when none are left do the
oldest per-step sections go, and last the steps; the newest part of a table always stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from otel_mlperf.ids import safe_name
from otel_mlperf.store.parts import live_parts, table_folder

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.store.parts import Part

_ORDER: Final = ("spans", "readings", "sections", "values", "steps")


def trim(folder: Path, host: str, most_bytes: int) -> int:
    """Removes parts of ``host`` until its tables take at most ``most_bytes``.

    Returns how many spans of sections (no roll-ups, no segments) are gone.
    """
    parts = {table: _own(folder, table, host) for table in _ORDER}
    size = sum(part.path.stat().st_size for of_table in parts.values() for part in of_table)
    removed = 0
    for table, of_table in parts.items():
        for part in of_table[:-1]:
            if size <= most_bytes:
                return removed
            size -= part.path.stat().st_size
            removed += _sections(part) if table == "spans" else 0
            part.path.unlink(missing_ok=True)
    return removed


def _own(folder: Path, table: str, host: str) -> list[Part]:
    """The parts of ``host``, oldest first."""
    return [p for p in live_parts(table_folder(folder, table)) if p.host == safe_name(host)]


def _sections(part: Part) -> int:
    kinds: list[str] = pq.read_table(part.path, columns=["kind"])["kind"].to_pylist()
    return kinds.count("section")
