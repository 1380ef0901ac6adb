"""Terminal table of several runs with user-selected columns."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.analysis.comparison.run_columns import Cell
from otel_mlperf.analysis.comparison.run_measures import STEP
from otel_mlperf.quantities import duration, rate, signed, size
from otel_mlperf.report.comparison_table import usual_note
from otel_mlperf.report.machine_lines import amount
from otel_mlperf.terminal_lines import WIDTH, Line, columns, left, short, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_mlperf.analysis.comparison.comparison_shapes import TimeChange, Word
    from otel_mlperf.analysis.comparison.run_columns import ColumnMean, RunRow
    from otel_mlperf.terminal_lines import Style

_LONGEST_NAME: Final = 20
_LONGEST_CELL: Final = 18
_UNKNOWN: Final = "–"
_STYLES: Final[dict[Word, Style]] = {
    "slower": "red",
    "faster": "green",
    "same": "",
    "unclear": "dim",
}


def render_columns(
    rows: Sequence[RunRow],
    means: Mapping[str, ColumnMean] | None = None,
    *,
    width: int = WIDTH,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """Render one line per run; in a trend, lines include the change since the previous run.

    If ``means`` is given, two lines are added: mean and standard deviation per numeric column.
    """
    if not rows:
        return text([[("no runs with this name and tag", "")]], color=color, unicode=unicode)
    name = min(max(4, *(columns(row.name) for row in rows)), _LONGEST_NAME)
    short_id = max(4, *(columns(row.short_id) for row in rows))
    wanted = list(rows[0].cells)
    shown = {column: [_shown(row.cells[column]) for row in rows] for column in wanted}
    below = _mean_cells(wanted, means) if means is not None else {}
    shown = {
        column: [*told, *(of[column] for of in below.values())] for column, told in shown.items()
    }
    widths = {
        column: max(columns(column), *(columns(told) for told in of)) + 2
        for column, of in shown.items()
    }
    title = f"{left('id', short_id)}  {left('name', name)}  {'started':<12}"
    title += "".join(f"{column:>{widths[column]}}" for column in wanted)
    is_trend = any(row.change is not None for row in rows)
    lines: list[Line] = [[(title + ("  than the run before" if is_trend else ""), "dim")]]
    for at, row in enumerate(rows):
        started = time.strftime("%d %b %H:%M", time.localtime(row.started_ns / 1e9))
        cells = "".join(f"{shown[column][at]:>{widths[column]}}" for column in wanted)
        lines.append(
            [
                (f"{left(row.short_id, short_id)}  ", "bold"),
                (f"{left(short(row.name, name), name)}  {started:<12}{cells}", ""),
                *_changed(row.change),
            ]
        )
    for label, of in below.items():
        cells = "".join(f"{of[column]:>{widths[column]}}" for column in wanted)
        lines.append([(f"{left(label, short_id + name + 14)}  {cells}", "bold")])
    return text(lines, color=color, unicode=unicode)


def _mean_cells(
    wanted: Sequence[str], means: Mapping[str, ColumnMean]
) -> dict[str, dict[str, str]]:
    count = max((mean.runs for mean in means.values()), default=0)
    values = {column: Cell(mean.value, mean.unit) for column, mean in means.items()}
    spread = {column: Cell(mean.sd, mean.unit) for column, mean in means.items()}
    return {
        label: {column: _shown(cells.get(column, Cell(None))) for column in wanted}
        for label, cells in ((f"mean of {count}", values), ("standard deviation", spread))
    }


def _changed(change: TimeChange | None) -> Line:
    if change is None:
        return []
    interval = change.usual if change.by == "usual" else change.mean
    change_text = f"{signed(interval.ratio)} % " if interval else ""
    if change.name != STEP:
        change_text = f"{change.name} {change_text}"
    return [(f"  {change_text}", ""), (f"{change.word}{usual_note(change)}", _STYLES[change.word])]


def _shown(cell: Cell) -> str:
    value: Any = cell.value
    if value is None:
        return _UNKNOWN
    if cell.unit == "ns":
        return duration(value)
    if cell.unit == "bytes":
        return size(value, 1024)
    if cell.unit:
        return amount(value, cell.unit)
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 999.5 else rate(value)
    return short(str(value), _LONGEST_CELL)
