"""SQL queries on the tables of a run folder, even while the tables are being written.

DuckDB is imported only when a store runs its first query. Opening a file costs as much as reading a
small file, and a summary runs about seventy queries. Therefore the first query that refers to a
small table, or to a table in many small parts, reads the whole table into memory.
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
    from numpy.typing import NDArray

    from otel_mlperf.store.parts import TablePart

_Row = TypeVar("_Row", bound=Row)
MANY: Final = 32
"""Minimum number of parts for a table above ``_SMALL_BYTES`` to be read into memory."""
_SMALL_BYTES: Final = 1 << 20
"""Maximum size on disk of tables that are always read into memory: a summary is a fifth faster."""
_MAX_BYTES: Final = 64 << 20
"""Maximum size on disk of tables that are read into memory, where they need eight times as much.

The parts of larger tables cost more to read than to open.
"""
_MAX_RECENT: Final = 1024
_ALWAYS_WHOLE: Final = ("processes", "instruments")
"""Tables of which all parts are needed, because their rows are not written repeatedly."""
_WORD: Final = re.compile(r"\w+")


def is_read_once(parts: int, size_bytes: float) -> bool:
    """Return whether the first query reads a table with this many parts and bytes into memory."""
    return parts > 0 and size_bytes <= (_MAX_BYTES if parts >= MANY else _SMALL_BYTES)


def is_small(size_bytes: float) -> bool:
    """Return whether one thread reads a table of this size fastest."""
    return size_bytes <= _SMALL_BYTES


def measure_bytes(files: list[str]) -> float:
    """Return the total size of a table's files; infinite if a file is missing."""
    try:
        return sum(Path(file).stat().st_size for file in files)
    except FileNotFoundError:  # merged since the listing; the query detects it and retries
        return math.inf


def named_in(sql: str) -> set[str]:
    """Return the tables whose names occur in the query ``sql``."""
    return TABLES.keys() & set(_WORD.findall(sql))


def gather(connection: duckdb.DuckDBPyConnection, table: str, selection: str) -> None:
    """Read a table into memory, and create a view with the table's name.

    ``selection`` is SQL that selects all rows of the table.
    """
    connection.execute("ATTACH IF NOT EXISTS ':memory:' AS gathered (COMPRESS)")
    # No query depends on the order, and preserving it would prevent reading files in parallel.
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(f"CREATE TABLE gathered.{table} AS {selection}")
    connection.execute("SET preserve_insertion_order = true")
    connection.execute(f"CREATE VIEW {table} AS SELECT * FROM gathered.{table}")


def newest(table: str, parts: list[TablePart]) -> list[TablePart]:
    """Return ``parts``, without the older parts of each host if there are over ``_MAX_RECENT``.

    Tables in ``_ALWAYS_WHOLE`` keep all parts.
    """
    if len(parts) <= _MAX_RECENT or table in _ALWAYS_WHOLE:
        return parts
    by_host = [list(of_host) for _, of_host in groupby(parts, key=lambda part: part.host)]
    each = max(1, _MAX_RECENT // len(by_host))
    return list(chain.from_iterable(of_host[-each:] for of_host in by_host))


RANGE_ROWS: Final = 20_000
"""Default number of rows per time range, which limits the memory of a query."""
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
"""Characters in a path that DuckDB treats as a pattern; each must be enclosed in brackets."""


def label_path(name: str) -> str:
    """Return a label's path for the SQL ``labels ->> $path``, which is null without the label."""
    return f'$."{name}"'


class Store:
    """SQL access to the tables of one run folder, as views of the same names.

    Missing tables are empty. ``processes`` contains only the latest row of each process. If
    ``rank`` is given, rows of other ranks are omitted. If ``is_recent``, only the newest parts of
    tables with very many parts are read.
    """

    reads_once = True
    """Whether tables may be read into memory (see ``is_read_once``)."""

    def __init__(self, folder: Path, rank: int | None = None, *, is_recent: bool = False) -> None:
        self._folder = folder
        self._rank, self._is_recent = rank, is_recent
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._files: dict[str, list[str]] = {}
        self._unread: set[str] = set()
        """Tables that the first query that refers to them reads into memory."""

    def rows(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query, in which ``$name`` is the parameter ``values["name"]``.

        Raises:
            StoreError: a file of the run cannot be read; the message names the file.
        """
        return self._answer(sql, values)[1]

    def records(self, sql: str, **values: object) -> list[dict[str, Any]]:
        """Return the rows of a query as dictionaries by column name; ``values`` as in ``rows``."""
        columns, rows = self._answer(sql, values)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def read(self, row: type[_Row], more: str = "", **values: object) -> list[_Row]:
        """Return the rows of the table whose row type is ``row``; ``values`` as in ``rows``.

        ``more`` is SQL that follows the table's name, such as ``ORDER BY rank``.
        """
        # Columns are not listed, because a column's name could be taken for that of a table.
        found = self.records(f"SELECT * FROM {NAMES[row]} {more}", **values)
        return [row(**of_row) for of_row in found]

    def arrow(self, sql: str, **values: object) -> pa.Table:
        """Return the rows of a query as an Arrow table; ``values`` as in ``rows``.

        Raises:
            StoreError: a file of the run cannot be read; the message names the file.
        """
        table: pa.Table = self.tried(
            lambda connection: connection.sql(sql, params=values or None).to_arrow_table(), sql
        )
        return table

    def _answer(self, sql: str, values: dict[str, object]) -> _Answer:
        def fetch(connection: duckdb.DuckDBPyConnection) -> _Answer:
            answer = connection.execute(sql, values or None)
            return [column[0] for column in answer.description or ()], answer.fetchall()

        found: _Answer = self.tried(fetch, sql)
        return found

    def tried(self, ask: Callable[[duckdb.DuckDBPyConnection], Any], sql: str) -> Any:
        """Return the result of ``ask``, which runs ``sql``; retry if files have been removed.

        Raises:
            StoreError: a file of the run cannot be read; the message names the file.
        """
        load_duckdb()
        import duckdb

        for last in (False,) * (_TRIES - 1) + (True,):
            try:
                self._connection = self._connection or self._open()
                self._gather(self._connection, sql)
                return ask(self._connection)
            except (duckdb.Error, UnicodeDecodeError) as error:
                # Parts are listed again, because the agent may have merged some since the listing.
                if last or not self._is_outdated():
                    raise self._explained(error) from error
                self._connection = None
        raise AssertionError("the last try returns or raises")

    def _open(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        connection = duckdb.connect(":memory:", config={"autoload_known_extensions": False})
        connection.execute("SET enable_progress_bar = false")  # would be printed to stdout
        self._files = {table: self._listed(table) for table in TABLES}
        sizes = {table: measure_bytes(files) for table, files in self._files.items()}
        if self.reads_once:
            self._unread = {
                table
                for table, size in sizes.items()
                if is_read_once(len(self._files[table]), size)
            }
        if all(map(is_small, sizes.values())):
            # Distributing small tables over threads would make a summary a seventh slower.
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
        import duckdb

        if isinstance(error, duckdb.OutOfMemoryException):  # not caused by a file
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
    """Import DuckDB, unless the limit of the address space is so low that DuckDB would crash.

    Raises:
        StoreError: the limit is too low.
    """
    if "duckdb" not in sys.modules:
        if lack := shortage(room_here(), TABLES_BYTES):
            raise StoreError(f"loading DuckDB, which reads the tables: {lack}")
        importlib.import_module("duckdb")


def as_numpy(array: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return an Arrow array of numbers without nulls as a NumPy array.

    The array's own ``to_numpy`` would import pandas wherever it is installed, which takes longer
    than most queries.
    """
    import numpy as np
    import pyarrow as pa

    whole = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return np.from_dlpack(whole)


def time_ranges(
    store: Store,
    table: str,
    column: str,
    where: str = "true",
    values: Mapping[str, object] = MappingProxyType({}),
    rows: int = RANGE_ROWS,
) -> Iterator[tuple[int, int]]:
    """Yield ranges ``low <= column < high`` of about ``rows`` rows each, which cover all rows.

    Large tables can be read piece by piece, because a query with such a range has only the range's
    rows in memory. Rows of the same time are always in the same range. ``table`` and ``where`` are
    SQL, with ``$name`` for ``values["name"]``.
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
    except UnicodeDecodeError:  # DuckDB's error message contains the invalid text
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
        # union_by_name is slower, because it opens all parts first: only used if parts may differ.
        parts = f"SELECT * FROM read_parquet({listed}, union_by_name = true)"
        return f"SELECT {columns} FROM ({_empty(table)} UNION ALL BY NAME {parts})"
    if table != "processes":
        return f"SELECT {columns} FROM read_parquet({listed})"
    return (
        f"SELECT {columns} FROM read_parquet({listed}, filename = true, file_row_number = true) "
        "QUALIFY row_number() OVER (PARTITION BY rank, restart, pid ORDER BY "
        f"list_position({_list_of(files)}, filename) DESC, file_row_number DESC) = 1"
    )
