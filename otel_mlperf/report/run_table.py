"""Terminal table of the list of runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from otel_mlperf.quantities import duration, plural
from otel_mlperf.terminal_lines import WIDTH, Line, columns, left, short, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.summary.run_list import RunLine
    from otel_mlperf.terminal_lines import Style

_NAME = 8
_TAGS = 12
"""Minimum columns for the tags, as ``_NAME`` is for the name."""
_STYLES: dict[str, Style] = {"finished": "green", "running": "cyan", "imported": "dim"}


def render_runs(
    runs: Sequence[RunLine],
    folder: str,
    more: int = 0,
    bad: Sequence[str] = (),
    *,
    width: int = WIDTH,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """Render one line per run.

    ``more`` is the number of omitted runs, ``bad`` lists folders whose ``run.json`` is unreadable.
    """
    lines: list[Line] = [[(f"no runs in {folder}", "")]]
    if runs:
        lines = _table(runs, width)
    if more:
        lines.append([(f"{plural(more, 'older run')} not shown: --all", "dim")])
    for name in bad:
        lines.append(
            [(short(f"{name}: the file run.json of this run cannot be read", width), "yellow")]
        )
    return text(lines, color=color, unicode=unicode)


def _table(runs: Sequence[RunLine], width: int) -> list[Line]:
    short_id = min(max(4, *(columns(run.short_id) for run in runs)), 12)
    tail = f"  {'started':<12}  {'outcome':<11}{'ranks':>6}{'steps':>9}{'duration':>10}"
    has_tags = any(run.tags for run in runs)
    free = width - short_id - 2 - columns(tail) - (2 + _TAGS) * has_tags
    name = min(max(4, *(columns(run.name) for run in runs)), max(_NAME, free))
    title = f"{left('id', short_id)}  {left('name', name)}{tail}"
    lines: list[Line] = [[(title + "  tags" * has_tags, "dim")]]
    room = max(_TAGS, width - columns(title) - 2)
    for run in runs:
        started = time.strftime("%d %b %H:%M", time.localtime(run.started_ns / 1e9))
        lines.append(
            [
                (f"{left(run.short_id, short_id)}  ", "bold"),
                (f"{left(run.name, name)}  {started:<12}  ", ""),
                (f"{run.outcome:<11}", _STYLES.get(run.outcome, "red")),
                (f"{run.ranks:>6,}{run.steps:>9,}{duration(run.duration_ns):>10}", ""),
                ("  " + short(" ".join(run.tags), room) if run.tags else "", "dim"),
            ]
        )
    return lines
