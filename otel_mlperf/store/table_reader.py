"""SQL over the tables of a run folder, also while it is being written.

DuckDB is loaded only here, when a store is opened. Opening a file takes as long as reading a small
one, and a summary runs some seventy queries. A small table, or one in many small parts, is
therefore read once, by the first query that names it, and kept in memory.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
from itertools import chain, groupby, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_mlperf.errors import StoreError
from otel_mlperf.own_processes import TABLES_BYTES, room_here, shortage
from otel_mlperf.store.parts import live_parts, table_folder
from otel_mlperf.tables import NAMES, TABLES
from otel_mlperf.tables.row import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import duckdb
    import pyarrow as pa

    from otel_mlperf.store.parts import TablePart

_Row = TypeVar("_Row", bound=Row)
MANY: Final = 32
"""Number of parts from which upward a table is read once."""
_SMALL_BYTES: Final = 1 << 20
"""A table of at most this size on disk is read once, which makes a summary a fifth faster."""
_MOST_BYTES: Final = 64 << 20
"""Maximum size on disk; in memory it is eight times as much. For larger parts reading costs more
than opening."""
_MOST_RECENT: Final = 1024
_ALWAYS_WHOLE: Final = ("processes", "instruments")
"""Tables whose rows are written once, not repeatedly."""
_WORD: Final = re.compile(r"\w+")


def is_read_once(parts: int, size_bytes: float) -> bool:
    """Return whether a table of this many parts is read into memory by the first query."""
    return parts > 0 and size_bytes <= (_MOST_BYTES if parts >= MANY else _SMALL_BYTES)


def is_small(size_bytes: float) -> bool:
    """Return whether one thread reads a table of this size fastest."""
    return size_bytes <= _SMALL_BYTES


def measure_bytes(files: list[str]) -> float:
    """Return the size of a table in these files; infinite if it is not known."""
    try:
        return sum(Path(file).stat().st_size for file in files)
    except FileNotFoundError:  # merged since it was listed: the query detects it
        return math.inf


def named_in(sql: str) -> set[str]:
    """Return the tables that a query may refer to."""
    return TABLES.keys() & set(_WORD.findall(sql))


def gather(connection: duckdb.DuckDBPyConnection, table: str, selection: str) -> None:
    """Read a table into memory, and create a view of it; ``selection`` is SQL for all its rows."""
    connection.execute("ATTACH IF NOT EXISTS ':memory:' AS gathered (COMPRESS)")
    # No query depends on the order, and preserving it prevents reading files on several processors.
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(f"CREATE TABLE gathered.{table} AS {selection}")
    connection.execute("SET preserve_insertion_order = true")
    connection.execute(f"CREATE VIEW {table} AS SELECT * FROM gathered.{table}")


def newest(table: str, parts: list[TablePart]) -> list[TablePart]:
    """Return the newest parts of each host if there are very many; they have the current state."""
    if len(parts) <= _MOST_RECENT or table in _ALWAYS_WHOLE:
        return parts
    by_host = [list(of_host) for _, of_host in groupby(parts, key=lambda part: part.host)]
    each = max(1, _MOST_RECENT // len(by_host))
    return list(chain.from_iterable(of_host[-each:] for of_host in by_host))


RANGE_ROWS: Final = 20_000
"""Number of rows in memory at one time."""
_FIRST: Final = -(1 << 63)
_LAST: Final = (1 << 63) - 1
_Answer = tuple[list[str], list[tuple[Any, ...]]]
_TYPES = {
    "int32": "INTEGER",
    "int64": "BIGINT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "text": "VARCHAR",
    "word": "VARCHAR",
}
_TRIES = 50
_PATTERN: Final = re.compile(r"[*?\[]")
"""Characters that make DuckDB treat a path as a pattern, unless they are in brackets."""


def label_path(name: str) -> str:
    """Return the path for ``labels ->> $path`` to select this label; null if it is missing."""
    return f'$."{name}"'


class Store:
    """Store: the tables of one run folder as views of the same names; a missing one is empty.

    ``processes`` contains one row for each process, the last one written. With a ``rank``, rows of
    other ranks are left out. With ``is_recent``, only the newest parts of a table in very many
    parts are read.
    """

    reads_once = True
    """Whether a table that is small, or in many parts, may be read into memory."""

    def __init__(self, folder: Path, rank: int | None = None, *, is_recent: bool = False) -> None:
        self._folder = folder
        self._rank, self._is_recent = rank, is_recent
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._files: dict[str, list[str]] = {}
        self._unread: set[str] = set()
        """Tables to be read into memory that no query has named yet."""

    def rows(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query; ``$name`` stands for ``values["name"]``.

        Raises:
            StoreError: a file of the run cannot be read; names it.
        """
        return self._answer(sql, values)[1]

    def records(self, sql: str, **values: object) -> list[dict[str, Any]]:
        """Return the rows of a query as dictionaries by column name."""
        columns, rows = self._answer(sql, values)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def read(self, row: type[_Row], more: str = "", **values: object) -> list[_Row]:
        """Return the rows of a table; ``more`` is SQL that follows it, e.g. ``ORDER BY rank``."""
        # Not by name: a column may have the name of a table, which would then be read into memory.
        found = self.records(f"SELECT * FROM {NAMES[row]} {more}", **values)
        return [row(**of_row) for of_row in found]

    def arrow(self, sql: str, **values: object) -> pa.Table:
        """Return the rows of a query as an Arrow table; ``values`` as in ``rows``.

        Raises:
            StoreError: as of ``rows``.
        """
        table: pa.Table = self.tried(
            lambda connection: connection.sql(sql, params=values or None).to_arrow_table(), sql
        )
        return table

    def _answer(self, sql: str, values: dict[str, object]) -> _Answer:
        def ask(connection: duckdb.DuckDBPyConnection) -> _Answer:
            answer = connection.execute(sql, values or None)
            return [column[0] for column in answer.description or ()], answer.fetchall()

        found: _Answer = self.tried(ask, sql)
        return found

    def tried(self, ask: Callable[[duckdb.DuckDBPyConnection], Any], sql: str) -> Any:
        """Return the result of ``ask`` for ``sql``, retried if a file was removed meanwhile."""
        load_duckdb()
        import duckdb

        for last in (False,) * (_TRIES - 1) + (True,):
            try:
                self._connection = self._connection or self._open()
                self._gather(self._connection, sql)
                return ask(self._connection)
            except (duckdb.Error, UnicodeDecodeError) as error:
                # The agent may have merged a part since it was listed: list again.
                if last or not self._is_outdated():
                    raise self._explained(error) from error
                self._connection = None
        raise AssertionError("the last try returns or raises")

    def _open(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        connection = duckdb.connect(":memory:", config={"autoload_known_extensions": False})
        connection.execute("SET enable_progress_bar = false")  # it would go to stdout
        self._files = {table: self._listed(table) for table in TABLES}
        sizes = {table: measure_bytes(files) for table, files in self._files.items()}
        if self.reads_once:
            self._unread = {
                table
                for table, size in sizes.items()
                if is_read_once(len(self._files[table]), size)
            }
        if all(map(is_small, sizes.values())):
            # Distributing small tables to other threads makes a summary a seventh slower.
            connection.execute("SET threads = 1")
        for table in TABLES.keys() - self._unread:
            rows = _all_rows(table, self._files[table], self._rank)
            connection.execute(f"CREATE VIEW {table} AS {rows}")
        return connection

    def _listed(self, table: str) -> list[str]:
        parts = live_parts(table_folder(self._folder, table))
        return [str(part.path) for part in (newest(table, parts) if self._is_recent else parts)]

    def _gather(self, connection: duckdb.DuckDBPyConnection, sql: str) -> None:
        for table in self._unread & named_in(sql):
            gather(connection, table, _all_rows(table, self._files[table], self._rank))
            self._unread.remove(table)

    def _is_outdated(self) -> bool:
        return any(not Path(file).exists() for files in self._files.values() for file in files)

    def _explained(self, error: Exception) -> StoreError:
        """Convert the error to one that names the file at fault."""
        import duckdb

        if isinstance(error, duckdb.OutOfMemoryException):  # no file is at fault
            return StoreError(f"reading the tables in {self._folder}: {error}")
        for table, files in self._files.items():
            for file in files:
                if (reason := _fault(table, file)) is not None:
                    return StoreError(
                        f"reading {file}: {reason}; the file is damaged: "
                        "move the file away to read the other data"
                    )
        return StoreError(f"reading the tables in {self._folder}: {error}")


def load_duckdb() -> None:
    """Load DuckDB if it may map what it needs; otherwise it would end the process.

    Raises:
        StoreError: it may not.
    """
    if "duckdb" not in sys.modules:
        if lack := shortage(room_here(), TABLES_BYTES):
            raise StoreError(f"loading DuckDB, which reads the tables: {lack}")
        importlib.import_module("duckdb")


def time_ranges(
    store: Store,
    table: str,
    column: str,
    where: str = "true",
    values: Mapping[str, object] = MappingProxyType({}),
    rows: int = RANGE_ROWS,
) -> Iterator[tuple[int, int]]:
    """Yield ranges ``low <= column < high`` of about ``rows`` rows each, which cover all rows.

    They are for a table that may be large. Between two moments a query touches only the rows there,
    and the whole table is never in memory. ``table`` and ``where`` are SQL, with ``$name`` for
    ``values``. Rows of one moment are never separated.
    """
    placed = (
        f"SELECT {column} AS moment, row_number() OVER (ORDER BY {column}) AS place "
        f"FROM {table} WHERE {where}"
    )
    times = store.rows(
        f"SELECT DISTINCT moment FROM ({placed}) WHERE (place - 1) % $rows = 0 ORDER BY moment",
        rows=rows,
        **values,
    )
    starts = [moment for (moment,) in times]
    if starts:
        yield from pairwise([_FIRST, *starts[1:], _LAST])


def _fault(table: str, file: str) -> str | None:
    import duckdb

    try:
        duckdb.execute(f"SELECT bit_xor(hash(t)) FROM ({_selection(table, [file])}) t").fetchall()
    except UnicodeDecodeError:  # the message itself contains the damaged text
        return "the column names are not text"
    except duckdb.Error as error:
        return str(error).partition("\n")[0]
    return None


def _all_rows(table: str, files: list[str], rank: int | None) -> str:
    if not files:
        return _empty(table)
    only = "" if rank is None else f" WHERE rank = {rank:d}"
    return f"SELECT * FROM ({_selection(table, files)}){only}"


def _empty(table: str) -> str:
    columns = ", ".join(f"NULL::{_TYPES[c.type]} AS {c.name}" for c in TABLES[table])
    return f"(SELECT {columns} LIMIT 0)"


def _list_of(texts: Iterable[str]) -> str:
    return "[" + ", ".join("'" + text.replace("'", "''") + "'" for text in texts) + "]"


def _selection(table: str, files: list[str]) -> str:
    columns = ", ".join(column.name for column in TABLES[table])
    listed = _list_of(_PATTERN.sub(r"[\g<0>]", file) for file in files)
    if any(column.added for column in TABLES[table]):
        # Opening every part together is slower: only for tables whose parts may differ.
        parts = f"SELECT * FROM read_parquet({listed}, union_by_name = true)"
        return f"SELECT {columns} FROM ({_empty(table)} UNION ALL BY NAME {parts})"
    if table != "processes":
        return f"SELECT {columns} FROM read_parquet({listed})"
    return (
        f"SELECT {columns} FROM read_parquet({listed}, filename = true, file_row_number = true) "
        "QUALIFY row_number() OVER (PARTITION BY rank, restart, pid ORDER BY "
        f"list_position({_list_of(files)}, filename) DESC, file_row_number DESC) = 1"
    )
