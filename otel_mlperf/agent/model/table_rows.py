"""Rows of the run folder's tables that wait to be stored, with histograms of durations and use."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.otlp.histogram import ExponentialBuckets
from otel_mlperf.store.schema import TABLES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from otel_mlperf.agent.model.events import SensorReading, WarningHeld
    from otel_mlperf.journal.meta import JournalMeta


class Calls:
    """Calls of a section at one place."""

    __slots__ = ("buckets", "errors", "least", "most", "spread", "total", "within")

    def __init__(self) -> None:
        self.buckets = ExponentialBuckets()
        self.errors = self.within = self.total = self.least = self.most = 0
        self.spread = 0.0

    def add(self, durations_ns: NDArray[np.int64], errors: int, within: int) -> None:
        """Add a non-empty batch of durations."""
        before, count = self.buckets.count, len(durations_ns)
        total, least, most = (
            int(f()) for f in (durations_ns.sum, durations_ns.min, durations_ns.max)
        )
        mean = total / count
        # About the mean: in squares of nanoseconds the differences would vanish.
        self.spread += float(((durations_ns - mean) ** 2).sum())
        if before:
            self.spread += before * count / (before + count) * (self.total / before - mean) ** 2
        self.least = min(self.least, least) if before else least
        self.most = max(self.most, most)
        self.total += total
        self.errors += errors
        self.within += within
        self.buckets.record(durations_ns / 1e9)

    def as_row(self) -> dict[str, Any]:
        """Return the columns of table ``durations`` besides the place."""
        buckets = self.buckets
        return {
            "count": buckets.count,
            "errors": self.errors,
            "within": self.within,
            "sum_ns": self.total,
            "min_ns": self.least,
            "max_ns": self.most,
            "spread": self.spread,
            "scale": buckets.scale,
            "zeros": buckets.zero_count,
            "first_bucket": buckets.offset,
            "counts": json.dumps(buckets.counts, separators=(",", ":")),
        }


class DurationRows:
    """Rows of table ``durations``: one for each section and place."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], tuple[dict[str, Any], Calls]] = {}

    @property
    def waiting(self) -> int:
        """Return the number of waiting rows."""
        return len(self._rows)

    def add(
        self, place: dict[str, Any], durations_ns: NDArray[np.int64], errors: int, within: int
    ) -> None:
        """Add calls that ended: their place, their durations, and the number that failed."""
        _, calls = self._rows.setdefault(tuple(place.values()), (place, Calls()))
        calls.add(durations_ns, errors, within)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return [place | calls.as_row() for place, calls in self._rows.values()]


_MOST: Final = (1 << 63) - 1


class _Sums:
    """Sums of one measure over all calls; exact, because integers of Python are unbounded."""

    __slots__ = ("count", "least", "most", "squares", "total")

    def __init__(self, value: int) -> None:
        self.count = self.total = self.squares = 0
        self.least = self.most = value

    def add(self, value: int) -> None:
        self.count += 1
        self.total += value
        self.squares += value * value
        self.least, self.most = min(self.least, value), max(self.most, value)

    def as_row(self) -> dict[str, Any]:
        # About the mean, so that parts can be merged without losing the differences.
        spread = (self.squares * self.count - self.total * self.total) / self.count
        return {
            "count": self.count,
            "total": max(-_MOST, min(_MOST, self.total)),
            "least": self.least,
            "most": self.most,
            "spread": spread,
        }


class UseRows:
    """Rows of table ``resources``: one for each section, place and measure."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], tuple[dict[str, Any], dict[str, _Sums]]] = {}

    @property
    def waiting(self) -> int:
        """Return the number of waiting rows."""
        return sum(len(measures) for _, measures in self._rows.values())

    def add(self, place: dict[str, Any], use: dict[str, int]) -> None:
        """Add one call: its place, and its known figures by measure."""
        _, measures = self._rows.setdefault(tuple(place.values()), (place, {}))
        for measure, value in use.items():
            sums = measures.get(measure)
            if sums is None:
                sums = measures[measure] = _Sums(value)
            sums.add(value)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return [
            place | {"measure": measure} | sums.as_row()
            for place, measures in self._rows.values()
            for measure, sums in measures.items()
        ]


Columns = dict[str, list[Any]]


class TableRows:
    """Rows since the last flush. The event log contains them until then, so a crash loses none."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._sections: Columns = {column.name: [] for column in TABLES["sections"]}
        self._outside: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._warnings: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.uses = UseRows()
        """Resource use of measured sections."""
        self.durations = DurationRows()
        """Durations of the calls of sections."""

    @property
    def waiting(self) -> int:
        """Return the number of waiting rows."""
        rows = sum(map(len, self.rows.values()))
        held = len(self._sections["name"]) + len(self._outside) + len(self._warnings)
        return rows + held + self.uses.waiting + self.durations.waiting

    def add(self, table: str, row: dict[str, Any]) -> None:
        """Add one row."""
        self.rows.setdefault(table, []).append(row)

    def add_step_sections(self, columns: Columns) -> None:
        """Add rows of table ``sections`` as whole columns."""
        # A mark may add thousands of these rows: no dictionary is made for any of them.
        for name, values in columns.items():
            self._sections[name].extend(values)

    def add_outside(self, row: dict[str, Any], era: int) -> None:
        """Add a section outside steps to those of the same path and ``era``.

        A new era starts with the first step of a phase, which separates set-up from the rest.
        """
        # Summed here and not by the reader: otherwise a service without steps would write a row per
        # call.
        same = ("rank", "restart", "phase", "path", "name", "beside", "aggregate")
        key = (era, *(row[field] for field in same))
        held = self._outside.get(key)
        if held is None:
            self._outside[key] = {**row}
        else:
            for field in ("count", "sum_ns", "self_ns"):
                held[field] += row[field]
            held["min_ns"] = min(held["min_ns"], row["min_ns"])
            held["max_ns"] = max(held["max_ns"], row["max_ns"])

    def add_reading(self, meta: JournalMeta | None, reading: SensorReading, time_ns: int) -> None:
        """Add a reading of a rank; of the node if there is no ``meta``."""
        self.add(
            "readings",
            {
                "rank": meta.rank if meta else None,
                "restart": meta.restart if meta else 0,
                "name": reading.name,
                "labels": json.dumps(reading.labels),
                "time_ns": time_ns,
                "value": reading.value,
            },
        )

    def add_warning(self, meta: JournalMeta | None, held: WarningHeld) -> None:
        """Add a warning of a rank, or of the node without ``meta``, for as long as it held."""
        row = {
            "rank": meta.rank if meta else None,
            "restart": meta.restart if meta else 0,
            "id": held.id,
            "labels": json.dumps(held.labels),
            "start_ns": held.start_unix_ns,
            "end_ns": held.end_unix_ns,
            "value": held.value,
            "threshold": held.threshold,
        }
        # The last row contains everything of the earlier ones.
        self._warnings[tuple(row.values())[:5]] = row

    def clear(self) -> None:
        """Remove all rows after they were written."""
        self.rows, self._outside, self._warnings = {}, {}, {}
        self.uses, self.durations = UseRows(), DurationRows()
        self._sections = {column.name: [] for column in TABLES["sections"]}

    def columns(self) -> dict[str, Columns]:
        """Return all rows as columns, by table."""
        columns = {table: _transposed(rows) for table, rows in self.rows.items()}
        if self._warnings:
            columns["warnings"] = _transposed([*self._warnings.values()])
        if uses := self.uses.rows():
            columns["resources"] = _transposed(uses)
        if calls := self.durations.rows():
            columns["durations"] = _transposed(calls)
        outside = _transposed([*self._outside.values(), *self.rows.get("sections", ())])
        columns["sections"] = {
            name: values + outside.get(name, []) for name, values in self._sections.items()
        }
        return columns


def _transposed(rows: list[dict[str, Any]]) -> Columns:
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


class SectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of table ``sections`` outside steps; those of steps come as columns."""

    rank: int
    restart: int
    phase: str
    name: str
    category: str
    count: int
    sum_ns: int
    self_ns: int
    min_ns: int
    max_ns: int
    start_ns: int
    parent: str = ""
    path: str = ""
    beside: bool = False
    aggregate: bool = False
    n: None = None
    number: None = None

    def as_row(self) -> dict[str, Any]:
        """Return the row by column."""
        return msgspec.structs.asdict(self)
