"""Ranges of steps that can be read together, with all of their sections, in limited memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.store.table_reader import Store

PIECE_ROWS: Final = 1_500_000
"""Of table ``sections``, read at once."""
_EXTENT: Final = """SELECT min(n), max(n),
(SELECT count(*) FROM sections WHERE n IS NOT NULL) FROM steps WHERE n >= $first"""


def step_ranges(store: Store, first: int = 0) -> Iterator[tuple[int, int]]:
    """Ranges ``low <= n < high`` that together have all steps from ``first`` on.

    A join or a group for each step and section of a run may be more than memory holds; none of
    these reaches from one step into another. Parts are written in the order of time, so that a
    query between two bounds skips most of what lies elsewhere.
    """
    ((begin, last, rows),) = store.rows(_EXTENT, first=first)
    if begin is not None:
        width = max(1, PIECE_ROWS * (last + 1 - begin) // max(rows, 1))
        for low in range(begin, last + 1, width):
            yield low, low + width
