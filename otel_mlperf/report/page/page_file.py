"""Rendering of a run's page, with its headline and tiles, into one self-contained HTML file.

The template escapes every inserted text. Styles, scripts and the chart data are embedded in the
file. The file's content security policy (CSP) permits only these scripts and forbids all network
requests, so that even a name that a browser took for a tag could not run any code.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from otel_mlperf.analysis.run.run_processes import RUNNING
from otel_mlperf.analysis.steps.step_shares import UNTRACKED
from otel_mlperf.quantities import column_unit, duration, figures, percent, plural, rate, size
from otel_mlperf.report.finding_lines import finding_text
from otel_mlperf.report.page import chart_data, hot_part, tables
from otel_mlperf.report.page.chart_library import ASSETS, FOLDER, SCRIPT, STYLE
from otel_mlperf.report.summary_table import failure_text, heading_text
from otel_mlperf.run_files import growth_file
from otel_mlperf.terminal_lines import uncontrolled

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from jinja2 import Environment

    from otel_mlperf.analysis.page.page_contents import RunCourse, RunPage
    from otel_mlperf.analysis.summary.summary_shapes import Summary


class Tile(NamedTuple):
    """One number at the top of the page, with its label and a note below (empty: no note)."""

    label: str
    value: str
    note: str = ""


def headline(page: RunPage) -> str:
    """Return a sentence on the mean step time and the section with the largest share of a step.

    For a run without steps, the sentence is about the busy share of profiled devices or, if no
    device was profiled, about the run's outcome.
    """
    summary = page.summary
    devices = page.kernels.total if page.kernels else None
    if summary.steps is None and devices is not None and devices.window_ns:
        at_least = "" if page.kernels and page.kernels.has_device_times else "at least "
        busy = percent(devices.busy_ns / devices.window_ns)
        return f"Devices were busy for {at_least}{busy} of the profiled time."
    if summary.steps is None:
        preposition = "for" if summary.outcome == RUNNING else "after"
        return f"{summary.outcome.capitalize()} {preposition} {duration(summary.duration_ns)}."
    inside = [row for row in summary.steps.rows if not row.beside and row.name != UNTRACKED]
    sentence = f"The mean step time is {duration(summary.steps.mean_ns)}"
    if inside:
        largest = max(inside, key=lambda row: row.mean_ns)
        sentence += f", of which {percent(largest.share)} is {largest.name}"
    return f"{sentence}."


def tiles(page: RunPage) -> list[Tile]:
    """Return the page's tiles; a number that is unknown for the run has no tile."""
    return [*_step_tiles(page.summary), *_run_tiles(page.summary), *_machine_tiles(page.summary)]


def _step_tiles(summary: Summary) -> Iterable[Tile]:
    steps = summary.steps
    if steps is None:
        return
    unit = column_unit(steps.mean_ns)
    note = f"p50 {unit.number(steps.p50_ns)} · p95 {unit.number(steps.p95_ns)}"
    yield Tile("mean step time", f"{unit.number(steps.mean_ns)} {unit.name}", note)
    for value, item in ((steps.tokens_per_s, "tokens"), (steps.samples_per_s, "samples")):
        if value is not None:
            yield Tile(f"{item} per second", rate(value), "over all ranks" * (summary.ranks > 1))
    ranks = plural(summary.ranks, "rank")
    yield Tile("steps", f"{steps.count:,}", f"{ranks}, {plural(summary.nodes, 'node')}")


def _run_tiles(summary: Summary) -> Iterable[Tile]:
    yield Tile("run duration", duration(summary.duration_ns), summary.outcome)
    if summary.ledger is not None and summary.ledger.goodput:
        yield Tile("goodput", percent(summary.ledger.goodput), "of the run's time")
    if summary.work is not None and summary.work.mfu is not None:
        yield Tile("MFU", percent(summary.work.mfu), summary.work.peak_type or "")


def _machine_tiles(summary: Summary) -> Iterable[Tile]:
    machine, process = summary.machine, summary.process
    busy = [gpu.busy_share for gpu in machine.gpus if gpu.busy_share is not None] if machine else []
    if busy:
        yield Tile(
            "device utilization", percent(sum(busy) / len(busy)), plural(len(busy), "device")
        )
    if process is None:
        return
    if process.cuda_peak_bytes is not None:
        yield Tile("peak device memory", size(process.cuda_peak_bytes, 1024), "PyTorch")
    yield Tile("peak host memory", size(process.memory_peak_bytes, 1024), "of one process")
    yield Tile("CPUs used", figures(process.cpus), "mean per process")


_ESCAPED_CONTROL = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u00[01][0-9a-f]|[bfr])")
"""Escaped control character in JSON. A backslash that is itself escaped does not start one."""


def render_page(page: RunPage) -> str:
    """Return the whole HTML file of a run as text."""
    return _rendered(
        "page.html.jinja",
        page,
        chart_data.chart_data(page),
        heading=heading_text(page.summary),
        failure=failure_text(page.summary),
        headline=headline(page),
        tiles=tiles(page),
        tables=tables,
        charts=chart_data,
        hot=hot_part,
        growth=growth_file,
        unit=column_unit(page.summary.steps.mean_ns) if page.summary.steps else None,
    )


def render_charts(course: RunCourse) -> str:
    """Return an HTML file with only the charts over time, as text; empty if there are no charts."""
    if not (course.steps or course.charts):
        return ""
    return _rendered("charts.html.jinja", course, chart_data.course_data(course))


def _rendered(template: str, course: RunCourse, data: dict[str, Any], **more: Any) -> str:
    from markupsafe import Markup

    scripts = [_read(FOLDER / SCRIPT), _read(ASSETS / "page.js")]
    text = (
        _environment()
        .get_template(template)
        .render(
            page=course,
            summary=course.summary,
            points=course.steps and chart_data.points_text(course.steps),
            # Unescaped: files of this package, and JSON that cannot close its enclosing element.
            styles=[Markup(_read(FOLDER / STYLE)), Markup(_read(ASSETS / "page.css"))],
            scripts=[Markup(script) for script in scripts],
            policy=_policy(scripts),
            data=Markup(_safe_json(data)),
            **more,
        )
    )
    return uncontrolled(text)


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")  # independent of the locale


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "duration": duration,
        "figures": figures,
        "finding": finding_text,
        "percent": percent,
        "plural": plural,
        "size": partial(size, step=1024),
        "time": _time,
        "width": _width,
    }
    return environment


def _time(ns: int) -> str:
    return time.strftime("%d %b %Y %H:%M:%S UTC", time.gmtime(ns / 1e9))


def _width(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.2f}%"


def _policy(scripts: list[str]) -> str:
    """Return the content security policy; it allows inline styles, which set widths of bars."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _safe_json(data: dict[str, Any]) -> str:
    """Return JSON without ``<``, ``>``, ``&``, line separators and control characters.

    Names from the user's program therefore cannot close the script element that contains the JSON.
    """
    text = msgspec.json.encode(data).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return _ESCAPED_CONTROL.sub(r"\1?", text)
