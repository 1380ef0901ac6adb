"""How is what sections took drawn for a terminal and for a notebook?"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from otel_mlperf.report.quantities import duration, percent

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.section_stats import SectionStats, Stats

_HEAD: Final = ("calls", "total", "self", "share", "mean", "sd", "min", "p95", "max")
_UNKNOWN: Final = "–"
_WIDEST: Final = 40
_CELL: Final = "text-align:right;padding:0 .8em"


def render_text(stats: Stats) -> str:
    """A table with a last row for all together, and a line for what is missing."""
    rows = _rows(stats)
    names = [name if len(name) <= _WIDEST else name[: _WIDEST - 1] + "…" for name, _ in rows]
    first = max(map(len, names))
    widths = [max(len(row[i]) for _, row in rows) for i in range(len(_HEAD))]
    lines = [
        name.ljust(first)
        + "".join(f"  {figure:>{width}}" for figure, width in zip(row, widths, strict=True))
        for name, (_, row) in zip(names, rows, strict=True)
    ]
    rule = "─" * max(map(len, lines))
    return "\n".join([_title(stats), *lines[:-1], rule, lines[-1], *_notes(stats)])


def render_html(stats: Stats) -> str:
    """The same without scripts and links; every word of the program is escaped."""
    rows = [
        f"<tr><td style='text-align:left'>{escape(name)}</td>"
        + "".join(f"<td style='{_CELL}'>{escape(figure)}</td>" for figure in row)
        + "</tr>"
        for name, row in _rows(stats)
    ]
    lines = "".join(f"<div>{escape(line)}</div>" for line in _notes(stats))
    title = f"<b>{escape(_title(stats))}</b>"
    return f"<div style='font-family:monospace'>{title}<table>{''.join(rows)}</table>{lines}</div>"


def _title(stats: Stats) -> str:
    since = {"last": "the last call", "mark": "the mark"}.get(stats.since, stats.since)
    return f"{stats.run}: {duration(stats.elapsed_ns)} since {since}"


def _rows(stats: Stats) -> list[tuple[str, tuple[str, ...]]]:
    """Names and figures: the head, the sections, and the sum of them.

    Of the times only self times add up: that of a section is in that of what is around it.
    """
    calls = sum(one.count for one in stats.values())
    own = sum(one.self_ns for one in stats.values())
    total = (f"{calls:,}", "", duration(own), _share(own, stats), *([""] * 5))
    return [
        ("section", _HEAD),
        *((one.name, _figures(one, stats)) for one in stats.values()),
        ("total", total),
    ]


def _figures(one: SectionStats, stats: Stats) -> tuple[str, ...]:
    return (
        f"{one.count:,}",
        duration(one.total_ns),
        duration(one.self_ns),
        _share(one.self_ns, stats),
        duration(one.mean_ns),
        *map(_known, (one.deviation_ns, one.min_ns, one.p95_ns, one.max_ns)),
    )


def _share(ns: float, stats: Stats) -> str:
    return percent(ns / stats.elapsed_ns) if stats.elapsed_ns else _UNKNOWN


def _known(ns: float | None) -> str:
    return _UNKNOWN if ns is None else duration(ns)


def _notes(stats: Stats) -> list[str]:
    counted = " · ".join(f"{name} {count:,.15g}" for name, count in stats.counted.items())
    missing = [f"missing: {what}" for what in stats.missing]
    return [f"counted: {counted}", *missing] if counted else missing
