"""Destination that writes spans and rows to the tables of the run folder, up to a size limit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.agent.delivery.destination import Delivered, Destination, SpanItem, TryLater
from otel_mlperf.errors import StoreError
from otel_mlperf.store.part_writer import compact, merge_all, trim, write_part, write_pieces
from otel_mlperf.tables import TABLES
from otel_mlperf.tables.run_tables import SpanRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from otel_mlperf.agent.delivery.destination import Batch, DestinationContext, Verdict
    from otel_mlperf.agent.model.table_rows import Columns, TableRows

STORE: Final = "store"
_SPANS_PER_PIECE: Final = 2_000
"""Maximum number of spans that are converted to columns and written at a time."""


class StoreDestination(Destination):
    """Destination for the tables of one host in a run folder.

    Each batch of spans is written together with the rows that are not stored yet.
    """

    name = STORE
    signals = ("spans",)
    buffered_in_wal = True

    def __init__(self, folder: Path, host: str, rows: TableRows) -> None:
        self._folder, self._host, self._rows = folder, host, rows

    def accept(self, batch: Batch) -> Verdict:
        """Write spans and waiting rows as part ``batch.number`` of each table.

        If a replay writes a part again, the part has the same rows and replaces the earlier part.
        If writing fails, the rows stay in memory for the next try.
        """
        # Rows are removed only after all tables are written, so that a retry with the same number
        # completes a partially written part.
        try:
            for table, columns in self._rows.columns().items():
                write_part(self._folder, table, self._host, batch.number, columns)
            if batch.spans:
                pieces = _pieces_of(batch.spans)
                write_pieces(self._folder, "spans", self._host, batch.number, pieces)
        except (OSError, StoreError) as error:
            return TryLater(str(error))
        # Must run last: if one table fails, all of them are written again.
        self._rows.clear()
        return Delivered()

    def compact(self) -> None:
        """Merge small parts.

        The caller must have written the agent's state before: otherwise a replay would write the
        rows of a merged part a second time.
        """
        for table in TABLES:
            compact(self._folder, table, self._host)

    def merge_all(self) -> None:
        """Merge all parts of each table at the end of a run, even parts that ``compact`` skips."""
        for table in TABLES:
            merge_all(self._folder, table, self._host)

    def trim(self, most_bytes: int, windows: Sequence[str] = ()) -> int:
        """Remove the oldest table parts until at most ``most_bytes`` remain, if possible.

        Returns the number of removed spans. ``windows`` names the profiler windows, oldest first:
        their parts have these names in place of the host.
        """
        return trim(self._folder, self._host, most_bytes, windows)


def _pieces_of(spans: Sequence[SpanItem]) -> Iterator[Columns]:
    # In pieces: columns and their Parquet form each need as much memory as the spans.
    for at in range(0, len(spans), _SPANS_PER_PIECE):
        yield span_columns_of(spans[at : at + _SPANS_PER_PIECE])


def make(site: DestinationContext) -> StoreDestination:
    """Create the destination for the run folder, which is always configured."""
    return StoreDestination(site.run_folder, site.host, site.rows)


def span_columns_of(spans: Sequence[SpanItem]) -> Columns:
    """Return the spans as columns of table ``spans``, by column name."""
    return {name: [_cell(span, name) for span in spans] for name in SpanRow.__struct_fields__}


def _cell(span: SpanItem, name: str) -> Any:
    value = getattr(span, name)
    if name in ("attributes", "links", "events"):
        return json.dumps(value, default=str, ensure_ascii=False)
    return value
