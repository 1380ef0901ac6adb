"""Ranges of steps that are small enough to read all of their sections at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.store.table_reader import Store

PIECE_ROWS: Final = 1_500_000
"""Approximate number of rows of table ``sections`` in one range."""
_EXTENT: Final = """SELECT min(n), max(n),
(SELECT count(*) FROM sections WHERE n IS NOT NULL) FROM steps WHERE n >= $first"""


def step_ranges(store: Store, first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield ranges ``low <= n < high`` that together contain all steps from ``first`` upward.

    A query over the sections of all steps at once can exceed the memory. No range splits a step.
    Because parts are written in time order, a query of one range skips most other rows.
    """
    ((begin, last, rows),) = store.rows(_EXTENT, first=first)
    if begin is not None:
        width = max(1, PIECE_ROWS * (last + 1 - begin) // max(rows, 1))
        for low in range(begin, last + 1, width):
            yield low, low + width
