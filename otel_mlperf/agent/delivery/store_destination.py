"""Destination that writes spans and rows into the tables of the run folder, below a size limit."""

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
_MOST_SPANS: Final = 2_000
"""Maximum number of spans in a piece that is written in one go."""


class StoreDestination(Destination):
    """Destination for the tables of one host in a run folder.

    The spans of a batch are written with the waiting rows.
    """

    name = STORE
    signals = ("spans",)
    buffered_in_wal = True

    def __init__(self, folder: Path, host: str, rows: TableRows) -> None:
        self._folder, self._host, self._rows = folder, host, rows

    def accept(self, batch: Batch) -> Verdict:
        """Write everything that waits as part number ``batch.number`` of its table.

        A part that a replay writes again has the same rows and replaces the first. Rows that the
        disk refuses still wait, and the next part contains them.
        """
        # No row is removed before all are written: writing a half-written part again under its
        # number completes it.
        try:
            for table, columns in self._rows.columns().items():
                write_part(self._folder, table, self._host, batch.number, columns)
            if batch.spans:
                pieces = _pieces_of(batch.spans)
                write_pieces(self._folder, "spans", self._host, batch.number, pieces)
        except (OSError, StoreError) as error:
            return TryLater(str(error))
        # Must run last: half of the tables may have been written, and that part is then written
        # again as a whole.
        self._rows.clear()
        return Delivered()

    def compact(self) -> None:
        """Merge small parts.

        A part must be in the state first, because a replay writes it again.
        """
        for table in TABLES:
            compact(self._folder, table, self._host)

    def merge_all(self) -> None:
        """Merge the parts that ``compact`` would leave separate, now that no more follow."""
        for table in TABLES:
            merge_all(self._folder, table, self._host)

    def trim(self, most_bytes: int, windows: Sequence[str] = ()) -> int:
        """Remove the oldest rows over the limit; return the number of removed spans.

        ``windows`` stand for the host in parts of profiler windows, the oldest first.
        """
        return trim(self._folder, self._host, most_bytes, windows)


def _pieces_of(spans: Sequence[SpanItem]) -> Iterator[Columns]:
    # As columns, and in Parquet's form, spans need as much memory again.
    for at in range(0, len(spans), _MOST_SPANS):
        yield span_columns_of(spans[at : at + _MOST_SPANS])


def make(site: DestinationContext) -> StoreDestination:
    """Make the destination for the run's own folder, which always exists."""
    return StoreDestination(site.run_folder, site.host, site.rows)


def span_columns_of(spans: Sequence[SpanItem]) -> Columns:
    """Return the columns of table ``spans``, which are the fields of a span."""
    return {name: [_cell(span, name) for span in spans] for name in SpanRow.__struct_fields__}


def _cell(span: SpanItem, name: str) -> Any:
    value = getattr(span, name)
    if name in ("attributes", "links", "events"):
        return json.dumps(value, default=str, ensure_ascii=False)
    return value
