"""Rendering of a run's page into one self-contained HTML file.

A template escapes every inserted text. Styles, scripts and the chart data are embedded in the
file. Its content security policy (CSP) lets the browser run only these scripts and forbids all
network requests: even if a name became a tag, it could do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf.quantities import column_unit, duration, figures, percent, plural, size
from otel_mlperf.report.finding_lines import finding_text
from otel_mlperf.report.page import growth_part, histogram_part, hot_part, tables
from otel_mlperf.report.page.chart_data import chart_data, course_data, points_text
from otel_mlperf.report.page.chart_library import ASSETS, FOLDER, SCRIPT, STYLE
from otel_mlperf.report.page.headline import headline, tiles
from otel_mlperf.report.summary_table import failure_text, heading_text
from otel_mlperf.terminal_lines import uncontrolled

_ESCAPED_CONTROL = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u00[01][0-9a-f]|[bfr])")
"""A control character in JSON notation; an escaped backslash before it makes it plain text."""

if TYPE_CHECKING:
    from pathlib import Path

    from jinja2 import Environment

    from otel_mlperf.analysis.page.page_contents import RunCourse, RunPage


def render_page(page: RunPage) -> str:
    """Return the whole HTML file."""
    return _rendered(
        "page.html.jinja",
        page,
        chart_data(page),
        heading=heading_text(page.summary),
        failure=failure_text(page.summary),
        headline=headline(page),
        tiles=tiles(page),
        tables=tables,
        histogram=histogram_part,
        hot=hot_part,
        growth=growth_part,
        unit=column_unit(page.summary.steps.mean_ns) if page.summary.steps else None,
    )


def render_charts(course: RunCourse) -> str:
    """Return a file with only the charts over time; empty if the run has none."""
    if not (course.steps or course.charts):
        return ""
    return _rendered("charts.html.jinja", course, course_data(course))


def _rendered(template: str, course: RunCourse, data: dict[str, Any], **more: Any) -> str:
    from markupsafe import Markup

    scripts = [_read(FOLDER / SCRIPT), _read(ASSETS / "page.js")]
    text = (
        _environment()
        .get_template(template)
        .render(
            page=course,
            summary=course.summary,
            points=course.steps and points_text(course.steps),
            # Markup is safe here: own files, and JSON that cannot close its enclosing element.
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
    """Return a share as a CSS width."""
    return f"{100 * min(1.0, max(0.0, share)):.2f}%"


def _policy(scripts: list[str]) -> str:
    """Return the content security policy; inline styles are only our own widths."""
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _safe_json(data: dict[str, Any]) -> str:
    """Return JSON that cannot leave its element, whatever names contain."""
    text = msgspec.json.encode(data).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return _ESCAPED_CONTROL.sub(r"\1?", text)
