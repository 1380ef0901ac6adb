"""Execution of ``SELECT`` queries of users on a run's tables, without access to other files.

Each query runs in a separate process, which is killed at its deadline. Limits within DuckDB would
not suffice: DuckDB can be interrupted only between blocks of rows, and DuckDB's memory limit does
not include all allocations.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from otel_mlperf.errors import OtelMlperfError, QueryError, StoreError
from otel_mlperf.own_processes import command
from otel_mlperf.portability import IS_WINDOWS
from otel_mlperf.store.run_folders import RunFolder, read_run
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    import duckdb

MAX_ROWS: Final = 200
LIMIT_S: Final = 30.0
MAX_MEMORY_BYTES: Final = 5 << 29
"""Maximum data size of the query process: DuckDB's memory, libraries and the answer."""
_MAX_ANSWER_BYTES: Final = 64 << 20
_MAX_THREADS: Final = 8
"""Maximum number of DuckDB threads, each of which needs memory."""
_LONGEST_TEXT: Final = 10_000
_LONGEST_ERROR: Final = 300
_LARGEST: Final = 1 << 63
_LOCKED: Final = (
    "SET temp_directory = ''",
    "SET memory_limit = '2GB'",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
"""Settings that prevent access to other files; the last one makes all settings irreversible."""


class QueryColumn(msgspec.Struct, frozen=True, kw_only=True):
    """Column of a query's answer."""

    name: str
    type: str
    """Name of the type in DuckDB."""


class QueryAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="query/1"):
    """Answer to a query over the tables of a run."""

    id: str
    """Id of the run."""
    short_id: str
    columns: list[QueryColumn]
    rows: list[list[Any]]
    """Rows with one value per column; values without a JSON type are text."""
    is_complete: bool
    """Whether ``rows`` contains all rows of the result."""


class _Request(msgspec.Struct, frozen=True, array_like=True):
    """Request that is passed to the query process on its standard input."""

    folder: str
    sql: str
    most_rows: int
    limit_s: float


def run_query_in_process(
    run: RunFolder, sql: str, most_rows: int = MAX_ROWS, limit_s: float = LIMIT_S
) -> QueryAnswer:
    """Run ``ask`` in a process with limited time and memory, and return the answer.

    Raises:
        QueryError: as in ``ask``, or the query exceeds the limit of time or memory.
    """
    request = _Request(os.fspath(run.path), sql, most_rows, limit_s)
    try:
        done = subprocess.run(
            command(__name__, ""),
            input=msgspec.json.encode(request),
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        _refuse_late(run, limit_s)
    if not IS_WINDOWS and done.returncode == -signal.SIGALRM:
        _refuse_late(run, limit_s)
    message = done.stderr.decode(errors="replace").strip()
    if done.returncode == QueryError.exit_code:
        raise QueryError(message)
    if done.returncode:
        raise QueryError(
            f"querying run {run.path.name}: the query process ended with status {done.returncode}; "
            f"its memory limit is {MAX_MEMORY_BYTES >> 20} MiB: restrict the query with WHERE, or "
            "aggregate less" + (f" ({message[-_LONGEST_ERROR:]})" if message else "")
        )
    return msgspec.json.decode(done.stdout, type=QueryAnswer)


def _refuse_late(run: RunFolder, limit_s: float) -> NoReturn:
    raise QueryError(
        f"querying run {run.path.name}: stopped after {limit_s:g} s; restrict the query with "
        "WHERE, or aggregate less"
    )


def main(_: list[str]) -> int:
    """Answer the request on standard input, and return the exit code of the process.

    The process enforces its time limit itself, in case the caller has died.
    """
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    if not IS_WINDOWS:  # on Windows, the caller enforces the timeout, and DuckDB the memory limit
        _limit_process(request.limit_s)
    try:
        answer = ask(read_run(Path(request.folder)), request.sql, request.most_rows)
        content = msgspec.json.encode(answer)
        if len(content) > _MAX_ANSWER_BYTES:
            raise QueryError(
                f"querying a run: the answer is larger than {_MAX_ANSWER_BYTES >> 20} MiB; "
                "select fewer rows or columns"
            )
    except MemoryError:
        sys.stderr.write("out of memory\n")
        return OtelMlperfError.exit_code
    except OtelMlperfError as error:
        sys.stderr.write(f"{error}\n")
        return QueryError.exit_code
    sys.stdout.buffer.write(content)
    return 0


def _limit_process(limit_s: float) -> None:
    import resource

    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # may be inherited as ignored
    signal.setitimer(signal.ITIMER_REAL, max(limit_s, 0.001))
    hard_limit = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = (
        MAX_MEMORY_BYTES
        if hard_limit == resource.RLIM_INFINITY
        else min(hard_limit, MAX_MEMORY_BYTES)
    )
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def ask(run: RunFolder, sql: str, most_rows: int = MAX_ROWS) -> QueryAnswer:
    """Return the first rows of one ``SELECT``, which can only read the files of this run.

    Raises:
        QueryError: the query is not a single ``SELECT``, or it is invalid.
    """

    def first_rows(connection: duckdb.DuckDBPyConnection) -> QueryAnswer:
        found = connection.execute(_select(connection, sql))
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

    answer: QueryAnswer = _LockedStore(run.path).tried(first_rows, sql)
    return answer


class _LockedStore(Store):
    """Store of a run's tables whose queries cannot access any other file."""

    reads_once = False  # only one query is run, and its memory is limited

    def _open(self) -> duckdb.DuckDBPyConnection:
        connection = super()._open()
        ((threads,),) = connection.execute("SELECT current_setting('threads')").fetchall()
        connection.execute(f"SET threads = {min(threads, _MAX_THREADS)}")
        files = [file.replace("'", "''") for of_table in self._files.values() for file in of_table]
        connection.execute("SET allowed_paths = [" + ", ".join(f"'{file}'" for file in files) + "]")
        for setting in _LOCKED:
            connection.execute(setting)
        return connection

    def _explained(self, error: Exception) -> StoreError:
        import duckdb

        if isinstance(error, duckdb.PermissionException):
            raise QueryError(
                f"querying run {self._folder.name}: only its own tables can be read"
            ) from error
        raise QueryError(f"querying run {self._folder.name}: {error}") from error


def _select(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    import duckdb

    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise QueryError(f"querying a run: found {len(statements)} statements, expected one")
    (statement,) = statements
    if statement.type != duckdb.StatementType.SELECT:
        raise QueryError(
            f"querying a run: {statement.type.name} is not permitted; use SELECT, DESCRIBE TABLE "
            "or SHOW TABLES"
        )
    return statement


def _plain(value: Any) -> Any:
    """Convert a value of DuckDB to JSON types; long texts are cut."""
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
