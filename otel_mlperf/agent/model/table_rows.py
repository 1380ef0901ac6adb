"""Rows that the run folder's tables do not contain yet, with sums of durations and resource use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict, replace

from otel_mlperf.otlp.histogram import ExponentialBuckets
from otel_mlperf.tables import ROWS
from otel_mlperf.tables.row import transposed
from otel_mlperf.tables.run_tables import (
    DurationRow,
    ReadingRow,
    ResourceRow,
    SectionRow,
    WarningRow,
)
from otel_mlperf.value_sums import ValueSums

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from otel_mlperf.agent.model.events import SensorReading, WarningHeld
    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.tables.row import Row
    from otel_mlperf.tables.run_tables import DurationPlaceRow, PlaceRow


class Calls:
    """Accumulated durations of the calls of one section at one place."""

    __slots__ = ("buckets", "errors", "least", "most", "spread", "total", "within")

    def __init__(self) -> None:
        self.buckets = ExponentialBuckets()
        self.errors = self.within = self.total = self.least = self.most = 0
        self.spread = 0.0

    def add(self, durations_ns: NDArray[np.int64], errors: int, within: int) -> None:
        """Add a non-empty batch: ``errors`` calls failed, ``within`` calls met the bound."""
        count = len(durations_ns)
        total, least, most = (
            int(f()) for f in (durations_ns.sum, durations_ns.min, durations_ns.max)
        )
        spread = float(((durations_ns - total / count) ** 2).sum())
        before = ValueSums(self.buckets.count, self.total, self.least, self.most, self.spread)
        both = before.merged(ValueSums(count, total, least, most, spread))
        self.total, self.spread = both.total, both.spread
        self.least, self.most = both.least, both.most
        self.errors += errors
        self.within += within
        self.buckets.record(durations_ns / 1e9)

    def as_row(self, place: DurationPlaceRow) -> DurationRow:
        """Return the accumulated calls as one row of table ``durations``."""
        buckets = self.buckets
        return DurationRow(
            **asdict(place),
            count=buckets.count,
            errors=self.errors,
            within=self.within,
            sum_ns=self.total,
            min_ns=self.least,
            max_ns=self.most,
            spread=self.spread,
            scale=buckets.scale,
            zeros=buckets.zero_count,
            first_bucket=buckets.offset,
            counts=json.dumps(buckets.counts, separators=(",", ":")),
        )


class DurationRows:
    """Rows of table ``durations`` that are not stored yet: one row for each section and place."""

    def __init__(self) -> None:
        self._calls: dict[DurationPlaceRow, Calls] = {}

    @property
    def waiting(self) -> int:
        """Return the number of rows that are not stored yet."""
        return len(self._calls)

    def add(
        self, place: DurationPlaceRow, durations_ns: NDArray[np.int64], errors: int, within: int
    ) -> None:
        """Add ended calls: ``errors`` calls failed, ``within`` calls met the declared bound."""
        self._calls.setdefault(place, Calls()).add(durations_ns, errors, within)

    def rows(self) -> list[Row]:
        """Return all rows that are not stored yet."""
        return [calls.as_row(place) for place, calls in self._calls.items()]


_MAX_INT64: Final = (1 << 63) - 1


class _Sums:
    """Sums of one measure over all calls; exact, because Python integers are unbounded."""

    __slots__ = ("count", "least", "most", "squares", "total")

    def __init__(self, value: int) -> None:
        self.count = self.total = self.squares = 0
        self.least = self.most = value

    def add(self, value: int) -> None:
        self.count += 1
        self.total += value
        self.squares += value * value
        self.least, self.most = min(self.least, value), max(self.most, value)

    def as_row(self, place: PlaceRow, measure: str) -> ResourceRow:
        # Relative to the mean, so that merging table parts does not lose precision.
        spread = (self.squares * self.count - self.total * self.total) / self.count
        return ResourceRow(
            **asdict(place),
            measure=measure,
            count=self.count,
            total=max(-_MAX_INT64, min(_MAX_INT64, self.total)),
            least=self.least,
            most=self.most,
            spread=spread,
        )


class UseRows:
    """Rows of table ``resources`` that are not stored yet: one row for each place and measure."""

    def __init__(self) -> None:
        self._measures: dict[PlaceRow, dict[str, _Sums]] = {}

    @property
    def waiting(self) -> int:
        """Return the number of rows that are not stored yet."""
        return sum(map(len, self._measures.values()))

    def add(self, place: PlaceRow, use: dict[str, int]) -> None:
        """Add the resource use of one call: values by key of the measure."""
        measures = self._measures.setdefault(place, {})
        for measure, value in use.items():
            sums = measures.get(measure)
            if sums is None:
                sums = measures[measure] = _Sums(value)
            sums.add(value)

    def rows(self) -> list[Row]:
        """Return all rows that are not stored yet."""
        return [
            sums.as_row(place, measure)
            for place, measures in self._measures.items()
            for measure, sums in measures.items()
        ]


Columns = dict[str, list[Any]]


class TableRows:
    """Rows since the last flush. A crash loses none, because the event log is replayed."""

    def __init__(self) -> None:
        self._rows: dict[type[Row], list[Row]] = {}
        self._sections = transposed(SectionRow, ())
        self._outside: dict[tuple[Any, ...], SectionRow] = {}
        self._warnings: dict[tuple[Any, ...], WarningRow] = {}
        self.uses = UseRows()
        """Resource use of measured sections."""
        self.durations = DurationRows()
        """Durations of the calls of sections."""

    @property
    def waiting(self) -> int:
        """Return the number of rows of all tables that are not stored yet."""
        rows = sum(map(len, self._rows.values()))
        merged = len(self._sections["name"]) + len(self._outside) + len(self._warnings)
        return rows + merged + self.uses.waiting + self.durations.waiting

    def add(self, row: Row) -> None:
        """Add one row."""
        self._rows.setdefault(type(row), []).append(row)

    def add_step_sections(self, columns: Columns) -> None:
        """Add rows of table ``sections`` that are given as whole columns, by column name."""
        # A mark may add thousands of these rows: columns avoid one object per row.
        for name, values in columns.items():
            self._sections[name].extend(values)

    def add_outside(self, row: SectionRow, era: int) -> None:
        """Add a section outside steps to the sums of its path and ``era``.

        An era ends when the first step of a phase starts. Set-up is thus separate from later
        sections.
        """
        # Sum when writing, not when reading: a service without steps would store a row per call.
        same = (row.rank, row.restart, row.phase, row.path, row.name, row.beside, row.aggregate)
        previous = self._outside.get((era, *same))
        if previous is not None:
            row = replace(
                previous,
                count=previous.count + row.count,
                sum_ns=previous.sum_ns + row.sum_ns,
                self_ns=previous.self_ns + row.self_ns,
                min_ns=min(previous.min_ns, row.min_ns),
                max_ns=max(previous.max_ns, row.max_ns),
            )
        self._outside[era, *same] = row

    def add_reading(self, meta: JournalMeta | None, reading: SensorReading, time_ns: int) -> None:
        """Add a reading of the rank of ``meta``, or of the node if ``meta`` is None."""
        self.add(
            ReadingRow(
                rank=meta.rank if meta else None,
                restart=meta.restart if meta else 0,
                name=reading.name,
                labels=json.dumps(reading.labels),
                time_ns=time_ns,
                value=reading.value,
            )
        )

    def add_warning(self, meta: JournalMeta | None, held: WarningHeld) -> None:
        """Add or update a warning of the rank of ``meta``, or of the node if ``meta`` is None."""
        row = WarningRow(
            rank=meta.rank if meta else None,
            restart=meta.restart if meta else 0,
            id=held.id,
            labels=json.dumps(held.labels),
            start_ns=held.start_unix_ns,
            end_ns=held.end_unix_ns,
            value=held.value,
            threshold=held.threshold,
        )
        # The latest row replaces earlier rows of the same warning: it contains their information.
        self._warnings[row.rank, row.restart, row.id, row.labels, row.start_ns] = row

    def clear(self) -> None:
        """Remove all rows. Must be called only after the rows are stored."""
        self._rows, self._outside, self._warnings = {}, {}, {}
        self.uses, self.durations = UseRows(), DurationRows()
        self._sections = transposed(SectionRow, ())

    def columns(self) -> dict[str, Columns]:
        """Return all rows as columns, by table name; tables without rows are omitted."""
        sections = [*self._outside.values(), *self._rows.get(SectionRow, ())]
        rows = self._rows | {
            WarningRow: [*self._warnings.values()],
            ResourceRow: self.uses.rows(),
            DurationRow: self.durations.rows(),
            SectionRow: sections,
        }
        columns = {name: transposed(kind, rows.get(kind, ())) for name, kind in ROWS.items()}
        for name, values in self._sections.items():
            columns["sections"][name] = values + columns["sections"][name]
        return {table: of_table for table, of_table in columns.items() if of_table["rank"]}
