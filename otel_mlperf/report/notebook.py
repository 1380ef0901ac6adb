"""Notebook rendering of a run: its summary, findings and charts.

The charts of the HTML page are embedded in an iframe, so that they share neither scripts nor styles
with the notebook. The table is outside the iframe: it remains visible where frames are removed (on
GitHub, in an untrusted notebook) or scripts do not run.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.analysis.page.page_contents import read_course
from otel_mlperf.analysis.steps.step_shares import UNTRACKED
from otel_mlperf.quantities import column_unit, duration, percent
from otel_mlperf.report.page.page_file import render_charts
from otel_mlperf.report.summary_notes import closing_lines
from otel_mlperf.report.summary_table import failure_text, heading_text, steps_text
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store
from otel_mlperf.terminal_lines import uncontrolled

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from otel_mlperf.analysis.page.page_contents import RunCourse
    from otel_mlperf.analysis.steps.step_shapes import Row
    from otel_mlperf.analysis.summary.summary_shapes import Branch, Summary

_FRAME_PX = 680
"""Height of the iframe: it fits two charts; further charts are reached by scrolling."""
_CELL = "text-align:right;padding:0 .8em"
_BAR = "background:#4c78a8;height:.7em;display:inline-block"


def render_html(summary: Summary) -> str:
    """Return a run's summary as HTML without scripts and links, with all texts escaped."""
    parts = ["<div style='font-family:monospace'>"]
    if summary.failure:
        parts.append(f"<div style='color:#b00'>{escape(failure_text(summary))}</div>")
    parts.append(f"<b>{escape(heading_text(summary))}</b>")
    if summary.steps:
        parts.append(f"<div>{escape(steps_text(summary.steps))}</div>")
        parts += _steps(summary.steps.rows, summary.steps.mean_ns, summary.has_gpu)
    else:
        parts += _tree(summary.tree)
    parts += (f"<div>{escape(line)}</div>" for line in closing_lines(summary))
    return uncontrolled("".join([*parts, "</div>"]))


def render_cell(course: RunCourse) -> str:
    """Return a run's summary as HTML, followed by an iframe with the run's charts, if any."""
    charts = render_charts(course)
    if not charts:
        return render_html(course.summary)
    # The iframe has an opaque origin: it can neither read nor change the notebook.
    frame = (
        f"<iframe title='charts of the run' sandbox='allow-scripts allow-downloads' "
        f"style='width:100%;height:{_FRAME_PX}px;border:0;margin-top:.6em' "
        f'srcdoc="{escape(charts)}"></iframe>'
    )
    return render_html(course.summary) + frame


def render_run(path: Path) -> str:
    """Return a run folder's summary and charts as HTML, from the data stored so far.

    Raises:
        StoreError: a file of the run cannot be read.
    """
    store = Store(path)
    return render_cell(read_course(store, judge_run(read_run(path), store=store)))


def _steps(rows: list[Row], mean_ns: float, has_gpu: bool) -> Iterable[str]:
    unit = column_unit(mean_ns)
    first = "one step (host time)" if has_gpu else "one step"
    yield _head(first, f"mean {unit.name}", "p95", "share")
    for row in rows:
        late = "–" if row.p95_ns is None else unit.number(row.p95_ns)
        share = percent(row.share)
        if row.beside:
            share = f"in {row.inside}" if row.inside else "concurrent"
        yield _cells(
            row.name, [unit.number(row.mean_ns), late, share], row.share * (not row.beside)
        )
    yield "</table>"


def _tree(tree: list[Branch]) -> Iterable[str]:
    yield _head("section", "calls", "total", "self", "share")
    for branch in tree:
        known = branch.name != UNTRACKED
        figures = [
            f"{branch.count:,}" if known else "",
            duration(branch.sum_ns),
            duration(branch.self_ns),
        ]
        name = "\u00a0\u00a0" * branch.depth + branch.name
        yield _cells(name, [*figures, percent(branch.share)], branch.share)
    yield "</table>"


def _head(first: str, *others: str) -> str:
    cells = "".join(f"<th style='{_CELL}'>{escape(other)}</th>" for other in others)
    return f"<table><tr><th style='text-align:left'>{escape(first)}</th>{cells}<th></th></tr>"


def _cells(name: str, figures: list[str], share: float) -> str:
    cells = "".join(f"<td style='{_CELL}'>{escape(figure)}</td>" for figure in figures)
    bar = f"<span style='{_BAR};width:{max(0.0, share) * 12:.1f}em'></span>"
    return f"<tr><td style='text-align:left'>{escape(name)}</td>{cells}<td>{bar}</td></tr>"
