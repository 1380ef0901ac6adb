"""What does a ``SELECT`` of one's own over a run's tables answer, with nothing else in reach?"""

from __future__ import annotations

from contextlib import contextmanager
from decimal import Decimal
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.errors import QueryError, StoreError
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    import duckdb

    from otel_mlperf.store.run_folders import RunFolder

MOST_ROWS: Final = 200
LIMIT_S: Final = 30.0
_LONGEST_TEXT: Final = 10_000
_LARGEST: Final = 1 << 63
_LOCKED: Final = (
    "SET temp_directory = ''",
    "SET memory_limit = '2GB'",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
"""From the first on no other file is reached, and from the last on none of it can be undone."""


class QueryColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of an answer."""

    name: str
    type: str
    """As DuckDB calls it."""


class QueryAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="query/1"):
    """What a query over the tables of a run answers."""

    id: str
    """Of the run."""
    short_id: str
    columns: list[QueryColumn]
    rows: list[list[Any]]
    """Each with a value for each column; what JSON has no type for is text."""
    is_complete: bool
    """Whether these are all rows."""


def ask(
    run: RunFolder, sql: str, most_rows: int = MOST_ROWS, limit_s: float = LIMIT_S
) -> QueryAnswer:
    """The first rows of one ``SELECT``; it reads this run's files alone, and writes none.

    Raises:
        QueryError: it is none, it is wrong, or it takes longer than it may.
    """

    def first_rows(connection: duckdb.DuckDBPyConnection) -> QueryAnswer:
        statement = _select(connection, sql)
        with _interrupted_after(connection, limit_s):
            found = connection.execute(statement)
            columns = [
                QueryColumn(name=name, type=str(kind)) for name, kind, *_ in found.description or ()
            ]
            rows = found.fetchmany(most_rows + 1)
        return QueryAnswer(
            id=run.facts.id,
            short_id=run.short_id,
            columns=columns,
            rows=[[_plain(value) for value in row] for row in rows[:most_rows]],
            is_complete=len(rows) <= most_rows,
        )

    answer: QueryAnswer = _LockedStore(run, limit_s).tried(first_rows, sql)
    return answer


class _LockedStore(Store):
    """The tables of a run, and no way from there to anything else."""

    reads_once = False  # a query of somebody's own is one, and its memory is limited

    def __init__(self, run: RunFolder, limit_s: float) -> None:
        super().__init__(run.path)
        self._limit_s = limit_s

    def _open(self) -> duckdb.DuckDBPyConnection:
        connection = super()._open()
        files = [file.replace("'", "''") for of_table in self._files.values() for file in of_table]
        connection.execute("SET allowed_paths = [" + ", ".join(f"'{file}'" for file in files) + "]")
        for setting in _LOCKED:
            connection.execute(setting)
        return connection

    def _explained(self, error: Exception) -> StoreError:
        import duckdb

        if isinstance(error, duckdb.InterruptException):
            raise QueryError(
                f"asking run {self._folder.name}: it took longer than {self._limit_s:g} s and was "
                "stopped; narrow it with WHERE, or aggregate less"
            ) from error
        if isinstance(error, duckdb.PermissionException):
            raise QueryError(
                f"asking run {self._folder.name}: only its own tables can be read, nothing else"
            ) from error
        raise QueryError(f"asking run {self._folder.name}: {error}") from error


def _select(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    import duckdb

    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise QueryError(f"asking a run: give one statement; these are {len(statements)}")
    (statement,) = statements
    if statement.type != duckdb.StatementType.SELECT:
        raise QueryError(
            f"asking a run: {statement.type.name} is refused; a SELECT is answered (also DESCRIBE "
            "TABLE and SHOW TABLES), and nothing is ever written"
        )
    return statement


@contextmanager
def _interrupted_after(connection: duckdb.DuckDBPyConnection, limit_s: float) -> Iterator[None]:
    timer = Timer(limit_s, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # DuckDB complains of connections that a thread still holds at the end


def _plain(value: Any) -> Any:
    """A value as JSON can hold it, not longer than anybody wants to read."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -_LARGEST <= value < _LARGEST else float(value)
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    text = str(value)
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"
