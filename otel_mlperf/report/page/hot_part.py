"""Table rows of the HTML page: functions and lines of profiled sections, and memory growth.

The page's template calls these functions. The texts are the same as on a terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import plural
from otel_mlperf.report.hot_table import (
    calls_text,
    left_out_texts,
    numbers,
    passed_over_text,
    section_text,
    titles,
)
from otel_mlperf.report.page.tables import file_place
from otel_mlperf.run_files.growth_file import KINDS, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.profiles.hot_spots import HotPart, HotSection
    from otel_mlperf.run_files.growth_file import GrowthRow, MemoryGrowth, What

__all__ = [
    "asides",
    "calls_text",
    "first",
    "growth_first",
    "growth_tables",
    "growths",
    "more",
    "numbers",
    "parts",
    "place",
    "section_text",
    "sections",
    "titles",
    "what",
]

MOST_SECTIONS: Final = 12
MOST_PARTS: Final = 12
_MAX_GROWTHS: Final = 4
_MAX_GROWTH_ROWS: Final = 12


def sections(hot: Sequence[HotSection]) -> Sequence[HotSection]:
    """Return the ``MOST_SECTIONS`` sections with most time, then the entries of kind ``window``."""
    profiled = [one for one in hot if one.kind != "window"]
    return [*profiled[:MOST_SECTIONS], *(one for one in hot if one.kind == "window")]


def parts(section: HotSection) -> Sequence[HotPart]:
    """Return a section's ``MOST_PARTS`` most expensive functions or lines."""
    return section.spots[:MOST_PARTS]


def asides(section: HotSection) -> list[str]:
    """Return texts on a section's calls that were not profiled; empty if all were profiled."""
    return left_out_texts(section) + [passed_over_text(section)] * bool(section.passed_over)


def what(section: HotSection) -> str:
    """Return the heading of the first column of a section's table: ``function`` or ``line``."""
    return "function" if section.kind in ("calls", "window") else "line"


def first(part: HotPart) -> str:
    """Return the first cell of a row: a function's name, or a line's location."""
    return part.name or place(part)


def place(part: HotPart) -> str:
    """Return the source location of a function or line as ``file:line``."""
    return file_place(part.file, part.line)


def more(hot: Sequence[HotSection]) -> str:
    """Return how many sections and rows the page omits, as text; empty if nothing is omitted."""
    rows = sum(max(0, len(one.spots) + one.more - MOST_PARTS) for one in sections(hot))
    omitted = len(hot) - len(sections(hot))
    texts = [plural(omitted, "more section")] * bool(omitted) + [plural(rows, "more row")] * bool(
        rows
    )
    return ", ".join(texts)


def growths(found: Sequence[MemoryGrowth]) -> Sequence[MemoryGrowth]:
    """Return the last few memory growths; each is the growth between two points in time."""
    return found[-_MAX_GROWTHS:]


def growth_tables(growth: MemoryGrowth) -> list[tuple[What, list[GrowthRow]]]:
    """Return the largest rows of a memory growth for each kind of rows that it has."""
    return [(what, rows[:_MAX_GROWTH_ROWS]) for what in KINDS if (rows := rows_of(growth, what))]


def growth_first(row: GrowthRow) -> str:
    """Return the first cell of a row of a memory growth: a name, or a line's location."""
    return file_place(row.file, row.line) if row.file else row.name
