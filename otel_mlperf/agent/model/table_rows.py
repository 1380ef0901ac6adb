"""Which rows wait for the next part of each table?

Sections of steps come as whole columns, the rest row by row; sections outside steps are summed up
by path until they are written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf.agent.model.duration_rows import DurationRows
from otel_mlperf.agent.model.use_rows import UseRows
from otel_mlperf.store.schema import TABLES

if TYPE_CHECKING:
    from otel_mlperf.agent.model.events import SensorReading, WarningHeld
    from otel_mlperf.journal.meta import JournalMeta

Columns = dict[str, list[Any]]


class TableRows:
    """Rows since the last flush. They are in the event log until then, so a crash loses none."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._sections: Columns = {column.name: [] for column in TABLES["sections"]}
        self._outside: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._warnings: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.uses = UseRows()
        """What measured sections used."""
        self.durations = DurationRows()
        """How long the calls of sections took."""

    @property
    def waiting(self) -> int:
        """How many rows wait."""
        rows = sum(map(len, self.rows.values()))
        held = len(self._sections["name"]) + len(self._outside) + len(self._warnings)
        return rows + held + self.uses.waiting + self.durations.waiting

    def add(self, table: str, row: dict[str, Any]) -> None:
        """One row."""
        self.rows.setdefault(table, []).append(row)

    def add_step_sections(self, columns: Columns) -> None:
        """Rows of table ``sections``, whole columns."""
        # A mark may bring thousands of these rows: no dictionary is made for any.
        for name, values in columns.items():
            self._sections[name].extend(values)

    def add_outside(self, row: dict[str, Any], era: int) -> None:
        """A section outside steps: added up with those of the same path and ``era``.

        A new one begins with the first step of a phase, so that set-up can be told from the rest.
        """
        # Summed here and not by the reader: a service without steps would else write a row a call.
        same = ("rank", "restart", "phase", "path", "name", "beside", "aggregate")
        key = (era, *(row[field] for field in same))
        held = self._outside.setdefault(key, row)
        if held is not row:
            for field in ("count", "sum_ns", "self_ns"):
                held[field] += row[field]
            held["min_ns"] = min(held["min_ns"], row["min_ns"])
            held["max_ns"] = max(held["max_ns"], row["max_ns"])

    def add_reading(self, meta: JournalMeta | None, reading: SensorReading, time_ns: int) -> None:
        """A reading of a rank; of the node where there is no ``meta``."""
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
        """A warning of a rank, of the node where there is no ``meta``, for as long as it held."""
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
        # The last one says all that those before it said.
        self._warnings[tuple(row.values())[:5]] = row

    def clear(self) -> None:
        """They are written."""
        self.rows, self._outside, self._warnings = {}, {}, {}
        self.uses, self.durations = UseRows(), DurationRows()
        self._sections = {column.name: [] for column in TABLES["sections"]}

    def columns(self) -> dict[str, Columns]:
        """All of them, by table."""
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
    """A row of table ``sections`` for what was no part of a step; those of one come as columns."""

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
        """By column."""
        return msgspec.structs.asdict(self)
