"""How do the functions and lines of profiled sections look on a terminal?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from otel_mlperf.report.lines import WIDTH, Line, left, short, text
from otel_mlperf.report.quantities import duration, percent, plural, size

if TYPE_CHECKING:
    from otel_mlperf.analysis.profiles.hot_spots import HotPart, HotRun, HotSection

TOP: Final = 10
_NONE: Final = (
    "no call of a section was profiled: span(name, profile='calls') asks for it, 'memory' for what "
    "is allocated"
)
_COLUMN: Final = 9
_NAME_PART: Final = 0.5
"""Of the room beside the numbers."""


def render_hot(
    hot: HotRun, *, top: int = TOP, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """A table for each profiled section."""
    lines: list[Line] = []
    for section in hot.sections:
        lines += [*([[]] if lines else []), *_table(section, top, width)]
    return text(lines or [[(_NONE, "")]], color=color, unicode=unicode)


def _table(section: HotSection, top: int, width: int) -> list[Line]:
    lines: list[Line] = [[(short(part, width), style)] for part, style in _head(section)]
    if section.spots:
        titles = _TITLES[section.kind]
        lines.append([("".join(f"{title:>{_COLUMN}}" for title in titles) + "  where", "dim")])
    lines += [_row(section, part, width) for part in section.spots[:top]]
    if (more := len(section.spots) + section.more - top) > 0:
        lines.append([(f"  {plural(more, 'other')}: --top, or --json", "dim")])
    return lines


_TITLES: Final = {
    "calls": ("own", "share", "total", "calls"),
    "memory": ("grown", "share", "blocks"),
}


def _head(section: HotSection) -> Line:
    ranks = f" on {plural(section.ranks, 'rank')}" if section.ranks > 1 else ""
    phase = f" in {section.phase}" if section.phase != "train" else ""
    calls = plural(section.calls, "profiled call") + ranks
    if section.kind == "memory":
        grown, peak = size(section.kept_bytes), size(section.peak_bytes)
        what = f"{calls} kept {grown} of what they allocated, peak {peak}"
    else:
        what = f"{calls} took {duration(section.duration_ns)}, the profiler's cost included"
    told: Line = [(f"{section.section}{phase}: {what}", "bold")]
    told += [
        (f"  {plural(count, 'call')} left out: {why}", "yellow")
        for why, count in section.left_out.items()
    ]
    if section.passed_over:
        calls = plural(section.passed_over, "call")
        told.append((f"  {calls} passed over while another section was profiled", "dim"))
    return told


def _row(section: HotSection, part: HotPart, width: int) -> Line:
    share = percent(part.share)
    if section.kind == "memory":
        cells = [size(part.kept_bytes), share, f"{part.blocks:,}"]
    else:
        cells = [duration(part.own_ns), share, duration(part.total_ns), f"{part.calls:,}"]
    numbers = "".join(f"{cell:>{_COLUMN}}" for cell in cells)
    return [(numbers, ""), ("  " + _where(part, width - len(numbers) - 2), "")]


def _where(part: HotPart, room: int) -> str:
    if not part.file:
        return short(part.name, room)
    # The end of a path tells more than its beginning.
    place = f"{part.file.removeprefix(os.getcwd() + os.sep)}:{part.line}"
    if not part.name:
        return _end(place, room)
    name = round(room * _NAME_PART)
    return f"{left(part.name, name)} {_end(place, room - name - 1)}"


def _end(place: str, room: int) -> str:
    folders = place.split(os.sep)
    while len(folders) > 1 and len(os.sep.join(folders)) > room:
        folders.pop(0)
    return short(os.sep.join(folders), room)
