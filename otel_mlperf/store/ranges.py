"""How is a table that may be large read piece by piece, in the order of time?

Between two moments, so that a query touches only what lies there, and nobody holds all of it.
"""

from __future__ import annotations

from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from otel_mlperf.store.table_reader import Store

ROWS: Final = 20_000
"""Rows held in memory at once."""
_FIRST: Final = -(1 << 63)
_LAST: Final = (1 << 63) - 1


def time_ranges(
    store: Store,
    table: str,
    column: str,
    where: str = "true",
    values: Mapping[str, object] = MappingProxyType({}),
    rows: int = ROWS,
) -> Iterator[tuple[int, int]]:
    """Ranges ``low <= column < high`` that hold about ``rows`` rows each, and all of them together.

    ``table`` and ``where`` are SQL, with ``$name`` for ``values``. Rows of one moment are never
    parted.
    """
    placed = (
        f"SELECT {column} AS moment, row_number() OVER (ORDER BY {column}) AS place "
        f"FROM {table} WHERE {where}"
    )
    found = store.rows(
        f"SELECT DISTINCT moment FROM ({placed}) WHERE (place - 1) % $rows = 0 ORDER BY moment",
        rows=rows,
        **values,
    )
    starts = [moment for (moment,) in found]
    if starts:
        yield from pairwise([_FIRST, *starts[1:], _LAST])
