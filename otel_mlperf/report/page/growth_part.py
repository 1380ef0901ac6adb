"""Memory growth between two points, as tables on a page.

The text is the same as on a terminal. The template calls these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.report.page.tables import file_place
from otel_mlperf.run_files.growth_file import KINDS, head_text, numbers, rows_of, titles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.run_files.growth_file import GrowthRow, MemoryGrowth, What

__all__ = ["first", "head_text", "numbers", "shown", "tables", "titles"]

_MOST_POINTS: Final = 4
_MOST_ROWS: Final = 12


def shown(growths: Sequence[MemoryGrowth]) -> Sequence[MemoryGrowth]:
    """Return the last growths."""
    return growths[-_MOST_POINTS:]


def tables(growth: MemoryGrowth) -> list[tuple[What, list[GrowthRow]]]:
    """Return the largest rows of each kind that has any."""
    return [(what, rows[:_MOST_ROWS]) for what in KINDS if (rows := rows_of(growth, what))]


def first(row: GrowthRow) -> str:
    """Return the first cell of a row: a name, or the location of a line."""
    return file_place(row.file, row.line) if row.file else row.name
