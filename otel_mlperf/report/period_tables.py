"""Terminal tables of the periods (hours, days) into which a run is divided."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import duration, figures, percent, plural, rate, size
from otel_mlperf.report.section_tables import exact_share
from otel_mlperf.terminal_lines import WIDTH, Line, columns, left, short, text

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.analysis.periods.period_shapes import Period, Periods
    from otel_mlperf.analysis.summary.call_shapes import CallFigures

    Cells = dict[str, str]
    """Cells of a row by column heading."""

_UNKNOWN: Final = "–"
_DAY_S: Final = 86_400
_LONGEST_NAME: Final = 30
_TIMES: Final = ("mean", "p50", "p95", "p99", "max")
_HEADS: Final = (
    *("steps", "calls", "active", "failed", "calls/s", "CPUs", "peak memory", *_TIMES),
    *("data wait", "within", "samples/s", "tokens/s"),
)
"""Column headings in display order. A table omits columns in which no row has a value."""


def render_periods(
    answer: Periods, *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Render tables with a row per period: steps, each kind of request, and resource use."""
    lines = _head(answer)
    if answer.phase is not None:
        lines += _table(answer, f"{answer.phase} steps", _of_steps)
    for title in dict.fromkeys(_title(one) for of in answer.periods for one in of.requests):
        lines += _table(answer, short(title, width), partial(_of_calls, title=title))
    lines += _table(answer, "processes", _of_processes)
    return text([*lines, *_notes(answer)], color=color, unicode=unicode)


def _head(answer: Periods) -> list[Line]:
    hours, minutes = divmod(abs(answer.utc_offset_s) // 60, 60)
    zone = f"UTC{'-' if answer.utc_offset_s < 0 else '+'}{hours:02}:{minutes:02}"
    of_rank = "" if answer.rank is None else f" · rank {answer.rank}"
    about = f" · {answer.short_id}{of_rank} · {answer.outcome} · by {_length(answer)}, {zone}"
    return [[(short(answer.name, _LONGEST_NAME), "bold"), (about, "")]]


def _length(answer: Periods) -> str:
    minutes = answer.every_ns // 60_000_000_000
    sizes = (("day", 1440), ("hour", 60), ("minute", 1))
    unit, size_min = next((unit, size) for unit, size in sizes if minutes % size == 0)
    return unit if minutes == size_min else plural(minutes // size_min, unit)


def _table(answer: Periods, title: str, cells_of: Callable[[Period], Cells]) -> list[Line]:
    rows = [cells_of(period) for period in answer.periods]
    heads = [head for head in _HEADS if any(head in row for row in rows)]
    if all(row.get("failed", "0") == "0" for row in rows):
        heads = [head for head in heads if head != "failed"]
    if not heads:
        return []
    table = [[row.get(head, _UNKNOWN) for head in heads] for row in rows]
    widths = [max(map(columns, cells)) + 1 for cells in zip(heads, *table, strict=True)]
    lines: list[Line] = [[], [(title, "bold")], [(_line("", heads, widths), "dim")]]
    day = ""
    for period, cells in zip(answer.periods, table, strict=True):
        begin = time.gmtime(period.start_ns // 10**9 + answer.utc_offset_s)
        date, label = time.strftime("%a %d %b", begin), time.strftime("%H:%M", begin)
        if answer.every_ns % (_DAY_S * 10**9) == 0:
            label = date
        elif date != day:
            lines.append([(f"  {date}", "dim")])
        day = date
        lines.append([(_line(label, cells, widths), "" if period.lived_ns else "dim")])
    return lines


def _line(label: str, cells: list[str], widths: list[int]) -> str:
    padded = zip(cells, widths, strict=True)
    return f"  {left(label, 5)}" + "".join(
        " " * (wide - columns(cell)) + cell for cell, wide in padded
    )


def _of_steps(period: Period) -> Cells:
    of = period.steps
    if of is None:
        return {"steps": "0"}
    cells = {"steps": f"{of.count:,}", "failed": f"{of.failed:,}"}
    if of.mean_ns is None:
        return cells
    cells |= {head: duration(getattr(of, f"{head}_ns")) for head in _TIMES}
    cells |= {"data wait": percent(of.wait_share or 0.0)}
    rates = {"samples/s": of.samples_per_s, "tokens/s": of.tokens_per_s}
    return cells | {head: rate(value) for head, value in rates.items() if value is not None}


def _title(one: CallFigures) -> str:
    bound = "" if one.bound_s is None else f", within {duration(one.bound_s * 1e9)}"
    place = f", in {one.phase} steps" if one.in_step else ""
    return f"requests {one.name}{place}{', concurrent' * one.beside}{bound}"


def _of_calls(period: Period, title: str) -> Cells:
    of = next((one for one in period.requests if _title(one) == title), None)
    if of is None:
        return {"calls": "0"}
    cells = {"calls": f"{of.count:,}", "failed": f"{of.errors:,}"}
    cells |= {"calls/s": figures(of.count * 1e9 / period.lived_ns)} if period.lived_ns else {}
    cells |= {head: duration(getattr(of, f"{head}_ns")) for head in _TIMES}
    return cells | ({} if of.within_share is None else {"within": exact_share(of)})


def _of_processes(period: Period) -> Cells:
    used = period.process
    cells = {"active": percent(period.lived_ns / (period.end_ns - period.start_ns))}
    cells |= {} if used.cpus is None else {"CPUs": f"{used.cpus:.2f}"}
    peak = used.memory_peak_bytes
    return cells | ({} if peak is None else {"peak memory": size(peak, 1024)})


def _notes(answer: Periods) -> list[Line]:
    notes = []
    worst = max((one.error_ratio for of in answer.periods for one in of.requests), default=None)
    if worst is not None:
        notes.append(f"p50, p95, p99 of requests are accurate to {figures(worst * 100)} %")
    if answer.undated_requests:
        undated = plural(answer.undated_requests, "request")
        notes.append(f"{undated} without a timestamp, recorded by an earlier version")
    notes += [f"not included yet: {missing}" for missing in answer.missing]
    lines: list[Line] = [[(note, "dim")] for note in notes]
    return [[], *lines] if lines else []
