"""What becomes of a table that hundreds of agents have written: who reads it, and how often?

To open a file takes as long as to read a small one, and a summary runs some seventy queries. So a
small table, or one in many small parts, is read once, by the first query that names it, and kept in
memory.
"""

from __future__ import annotations

import math
import re
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mlperf.store.schema import TABLES

if TYPE_CHECKING:
    import duckdb

    from otel_mlperf.store.parts import TablePart

MANY: Final = 32
"""Parts from which on a table is read once."""
_SMALL_BYTES: Final = 1 << 20
"""A table of at most this size on disk is read once: a summary then takes a fifth less time."""
_MOST_BYTES: Final = 64 << 20
"""On disk: eight times as much in memory. Of larger parts reading is the work, not opening."""
_MOST_RECENT: Final = 1024
_ALWAYS_WHOLE: Final = ("processes", "instruments")
"""Their rows are written once, not again and again."""
_WORD: Final = re.compile(r"\w+")


def is_read_once(parts: int, size_bytes: float) -> bool:
    """Whether a table in so many parts is read into memory by the first query."""
    return parts > 0 and size_bytes <= (_MOST_BYTES if parts >= MANY else _SMALL_BYTES)


def is_small(size_bytes: float) -> bool:
    """Whether one thread reads a table of this size fastest."""
    return size_bytes <= _SMALL_BYTES


def measure_bytes(files: list[str]) -> float:
    """The size of a table in these files; infinite where it is not known."""
    try:
        return sum(Path(file).stat().st_size for file in files)
    except FileNotFoundError:  # merged away since it was listed: the query finds out
        return math.inf


def named_in(sql: str) -> set[str]:
    """The tables that a query may ask for."""
    return TABLES.keys() & set(_WORD.findall(sql))


def gather(connection: duckdb.DuckDBPyConnection, table: str, selection: str) -> None:
    """Reads a table into memory, and makes a view of it; ``selection`` is SQL for all its rows."""
    connection.execute("ATTACH IF NOT EXISTS ':memory:' AS gathered (COMPRESS)")
    # Nothing here depends on the order, and with it files are not read on several processors.
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(f"CREATE TABLE gathered.{table} AS {selection}")
    connection.execute("SET preserve_insertion_order = true")
    connection.execute(f"CREATE VIEW {table} AS SELECT * FROM gathered.{table}")


def newest(table: str, parts: list[TablePart]) -> list[TablePart]:
    """Of a table in very many parts the newest ones of each host, which say what is now."""
    if len(parts) <= _MOST_RECENT or table in _ALWAYS_WHOLE:
        return parts
    by_host = [list(of_host) for _, of_host in groupby(parts, key=lambda part: part.host)]
    each = max(1, _MOST_RECENT // len(by_host))
    return list(chain.from_iterable(of_host[-each:] for of_host in by_host))
