"""Terminal tables of the functions and lines that took most time in profiled sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import duration, percent, plural, size
from otel_mlperf.run_files.growth_file import all_growth_lines
from otel_mlperf.terminal_lines import WIDTH, Line, left, place_text, short, text

if TYPE_CHECKING:
    from otel_mlperf.analysis.profiles.hot_spots import HotPart, HotRun, HotSection

TOP: Final = 10
_NONE: Final = (
    "no calls were profiled: use span(name, profile='calls') for functions, profile='lines' for "
    "lines, profile='memory' for allocations, profiler windows with with_stack=True for "
    "functions, or memory_growth() for growth of memory"
)
_COLUMN: Final = 9
_NAME_PART: Final = 0.5
"""Share of the columns next to the numbers that is for function names; the rest is for files."""


class HotTable:
    """Functions and lines with most time in profiled sections; ``print`` shows them as tables."""

    def __init__(self, found: HotRun) -> None:
        self.sections: list[HotSection] = found.sections
        """Profiled sections, each with its functions or lines as ``spots``."""
        self._found = found

    def __str__(self) -> str:
        return render_hot(self._found).rstrip("\n")

    def __repr__(self) -> str:
        return f"<HotTable of {', '.join(one.section for one in self.sections) or 'nothing'}>"


def read_hot(folder: str, section: str | None = None) -> HotTable:
    """Return the profiles stored so far in a run folder, or only those of one ``section``."""
    from pathlib import Path

    from otel_mlperf.analysis.profiles.hot_spots import find_hot
    from otel_mlperf.store.run_folders import read_run

    return HotTable(find_hot(read_run(Path(folder)), section))


def render_hot(
    hot: HotRun, *, top: int = TOP, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Render a table with at most ``top`` rows per profiled section, then the memory growth."""
    lines: list[Line] = []
    for section in hot.sections:
        lines += [*([[]] if lines else []), *_table(section, top, width)]
    if hot.growths:
        grown = all_growth_lines(hot.growths, top=top, width=width)
        lines += [*([[]] if lines else []), *grown]
    return text(lines or [[(_NONE, "")]], color=color, unicode=unicode)


def _table(section: HotSection, top: int, width: int) -> list[Line]:
    lines: list[Line] = [[(short(part, width), style)] for part, style in _head(section)]
    if section.spots:
        head = "".join(f"{title:>{_COLUMN}}" for title in titles(section))
        lines.append([(f"{head}  where", "dim")])
    lines += [_row(section, part, width) for part in section.spots[:top]]
    if (more := len(section.spots) + section.more - top) > 0:
        lines.append([(f"  {plural(more, 'more row')}: --top, or --json", "dim")])
    return lines


_TITLES: Final = {
    "calls": ("self", "share", "total", "calls"),
    "lines": ("time", "share", "runs"),
    "memory": ("grown", "share", "blocks"),
    "window": ("self", "share", "total", "calls"),
}


def _head(section: HotSection) -> Line:
    title: Line = [(f"{section_text(section)}: {calls_text(section)}", "bold")]
    title += [(f"  {why}", "yellow") for why in left_out_texts(section)]
    if section.passed_over:
        title.append((f"  {passed_over_text(section)}", "dim"))
    return title


def section_text(section: HotSection) -> str:
    """Return a section's name, with its phase unless the phase is training.

    For functions in profiler windows, which have no section, the text is ``profiler windows``.
    """
    if section.kind == "window":
        return "profiler windows"
    phase = f" in {section.phase}" if section.phase != "train" else ""
    return f"{section.section}{phase}"


def calls_text(section: HotSection) -> str:
    """Return the number of profiled calls or windows with their total time or memory, as text."""
    ranks = f" on {plural(section.ranks, 'rank')}" if section.ranks > 1 else ""
    if section.kind == "window":
        windows = plural(section.calls, "window") + ranks
        return f"{windows}, {duration(section.duration_ns)}, self times without operators"
    calls = plural(section.calls, "profiled call") + ranks
    if section.kind == "memory":
        grown, peak = size(section.kept_bytes), size(section.peak_bytes)
        return f"{calls}, {grown} still allocated at the end of the calls, peak {peak}"
    return f"{calls}, {duration(section.duration_ns)} in total including profiler overhead"


def left_out_texts(section: HotSection) -> list[str]:
    """Return a text per reason why calls have no profile, with the number of these calls."""
    return [
        f"{plural(count, 'call')} not profiled: {why}" for why, count in section.left_out.items()
    ]


def passed_over_text(section: HotSection) -> str:
    """Return a text on calls that were not profiled while another section was being profiled."""
    return f"{plural(section.passed_over, 'call')} skipped while another section was profiled"


def titles(section: HotSection) -> tuple[str, ...]:
    """Return the headings of the numeric columns of a section's table."""
    return _TITLES[section.kind]


def numbers(section: HotSection, part: HotPart) -> list[str]:
    """Return the numeric cells of one function or line, in the order of ``titles``."""
    share = percent(part.share)
    if section.kind == "memory":
        return [size(part.kept_bytes), share, f"{part.blocks:,}"]
    if section.kind == "lines":
        return [duration(part.own_ns), share, f"{part.calls:,}"]
    return [duration(part.own_ns), share, duration(part.total_ns), f"{part.calls:,}"]


def _row(section: HotSection, part: HotPart, width: int) -> Line:
    cells = "".join(f"{cell:>{_COLUMN}}" for cell in numbers(section, part))
    return [(cells, ""), ("  " + _where(part, width - len(cells) - 2), "")]


def _where(part: HotPart, room: int) -> str:
    if not part.file:
        return short(part.name, room)
    if not part.name:
        return place_text(part.file, part.line, room)
    name = round(room * _NAME_PART)
    return f"{left(part.name, name)} {place_text(part.file, part.line, room - name - 1)}"
