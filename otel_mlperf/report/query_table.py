"""Terminal table of the result of an SQL query on a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf.terminal_lines import WIDTH, Line, columns, left, short, text

if TYPE_CHECKING:
    from otel_mlperf.store.run_query import QueryAnswer


def render_query(
    answer: QueryAnswer, *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Render one line per row of the result: numbers are right-aligned, a null is a dash.

    A cell is cut to ``width``, but a line of several cells can be longer.
    """
    head = [column.name for column in answer.columns]
    rows = [[_shown(value, width) for value in row] for row in answer.rows]
    widths = [max(map(columns, cells)) for cells in zip(head, *rows, strict=True)]
    to_right = [
        any(value is not None for value in cells)
        and all(isinstance(value, int | float | None) for value in cells)
        for cells in zip(*answer.rows, strict=True)
    ] or [False] * len(head)

    def line(cells: list[str]) -> str:
        parts = (
            " " * (wide - columns(cell)) + cell if right else left(cell, wide)
            for cell, wide, right in zip(cells, widths, to_right, strict=True)
        )
        return "  ".join(parts)

    lines: list[Line] = [[(line(head), "dim")]]
    lines += [[(line(row), "")] for row in rows]
    if not answer.is_complete:
        lines.append([(f"more rows exist; only {len(rows)} are shown (--rows)", "dim")])
    return text(lines, color=color, unicode=unicode)


def _shown(value: Any, width: int) -> str:
    if value is None:
        return "–"
    return short(f"{value:.6g}" if isinstance(value, float) else str(value), width)
