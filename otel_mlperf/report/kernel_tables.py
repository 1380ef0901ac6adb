"""Terminal rendering of the kernels of profiler windows: rows, columns and totals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.profiles.kernel_rows import choose_rows
from otel_mlperf.quantities import duration, percent, plural
from otel_mlperf.report.kernel_facts import (
    around,
    incomplete_lines,
    unknown_row_texts,
    unknown_rows_of,
)
from otel_mlperf.report.kernel_names import short_names
from otel_mlperf.terminal_lines import WIDTH, Line, broken, columns, folded, left, short, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.profiles.window_shapes import (
        DeviceFigures,
        KernelRow,
        Kernels,
        ProfiledStepFacts,
        WindowFacts,
    )
    from otel_mlperf.terminal_lines import Style

    _Cells = tuple[str, ...]


_NARROWEST: Final = 16
_SECTION: Final = 15
_WIDE: Final = 110
"""Minimum terminal width in columns for the additional numeric columns of the table."""
_COLORS: Final[dict[str, Style]] = {"communication": "red", "copy": "yellow"}


def table_lines(kernels: Kernels, width: int) -> list[Line]:
    """Return the table with the sums of omitted and of all rows; if it has no rows, the reason."""
    shown = kernels.rows
    if not shown:
        why = [part for line in _nothing(kernels) for part in broken(line, width - 2)]
        return [[(f"  {part}", "dim")] for part in why]
    sums = dict(_sums(kernels))
    numbers = _aligned([*_figures(kernels, is_wide=width >= _WIDE), *sums.values()])
    longest = max(columns(row.section) for row in shown)
    room = width - columns(numbers[0]) - _NARROWEST - 4
    max_section = min(_SECTION + max(0, width - WIDTH) // 4, max(room, len("section")))
    section = min(max(longest, len("section")), max_section) if longest else 0
    name = max(_NARROWEST, width - 2 - columns(numbers[0]) - (section + 2 if section else 0))
    # Shorten all names in one call: names that would become equal get distinguishing words.
    names = short_names([row.name for row in shown], name)
    if width >= _WIDE:
        name = min(name, max(map(columns, [kernels.by, *names, *sums])))
    title = f"  {left(kernels.by, name)}{numbers[0]}{'  section' if section else ''}"
    lines: list[Line] = [[(title, "dim")]]
    for row, label, cells in zip(shown, names, numbers[1:], strict=False):
        styled = (f"  {left(label, name)}", _COLORS.get(row.kind, ""))
        lines.append([styled, (cells, ""), (f"  {short(row.section, section)}", "dim")])
    for label, cells in zip(sums, numbers[len(shown) + 1 :], strict=True):
        lines.append([(f"  {left(label, name)}{cells}", "dim")])
    return lines


def _figures(kernels: Kernels, *, is_wide: bool) -> Iterable[_Cells]:
    yield (*_heads(kernels), "mean", *(_more_heads(kernels) if is_wide else ()))
    for row in kernels.rows:
        more = _more_cells(kernels, row) if is_wide else ()
        yield (*_cells(row.calls, row.measured_ns, row.share), duration(_mean(kernels, row)), *more)


def _sums(kernels: Kernels) -> Iterable[tuple[str, _Cells]]:
    more, together = kernels.more, kernels.together
    if more is not None:
        yield f"… {more.rows:,} more", _cells(more.calls, more.measured_ns, more.share)
    if together is not None and together.rows > 1 and together.measured_ns is not None:
        yield "total", _cells(together.calls, together.measured_ns, together.share)


def _aligned(rows: list[_Cells]) -> list[str]:
    """Return each row's cells as one right-aligned text; the first row must have most cells."""
    full = [(*row, *("",) * (len(rows[0]) - len(row))) for row in rows]
    rooms = [max(map(columns, column)) + 2 for column in zip(*full, strict=True)]
    return [
        "".join(f"{cell:>{room}}" for cell, room in zip(row, rooms, strict=True)) for row in full
    ]


def is_empty(kernels: Kernels) -> bool:
    """Return whether the profiler windows contain neither events nor memory readings."""
    return not (any(window.events for window in kernels.windows) or kernels.memory)


def _nothing(kernels: Kernels) -> Iterable[str]:
    if is_empty(kernels):
        return
    if kernels.by == "phase":
        yield "no phase is known: the window was not recorded in the steps of a run"
    elif kernels.by in ("kernel", "stream"):
        yield f"no {kernels.by}: no device work was recorded"
    elif kernels.by == "operator" and not kernels.is_device:
        yield "no operator was recorded"
    else:
        worker = "a device" if kernels.is_device else "an operator"
        yield f"no {kernels.by} in which {worker} was busy"
    groupings = [
        f"--by {by} ({plural(rows, 'row')})" for by, rows in kernels.groups.items() if rows
    ]
    if groupings:
        yield f"available: {', '.join(groupings)}"


def _heads(kernels: Kernels) -> tuple[str, str, str]:
    of_time = "% step" if kernels.step else "% window"
    if kernels.by == "operator":
        return ("calls", "on GPU", "% busy") if kernels.is_device else ("calls", "self", "% self")
    if kernels.by == "stream":
        return "kernels", "busy", of_time
    share = "% busy" if kernels.is_device and kernels.by != "annotation" else of_time
    if kernels.by in ("section", "phase", "step"):
        return "kernels" if kernels.is_device else "operators", "total", share
    return "calls", "total", share


def _more_heads(kernels: Kernels) -> tuple[str, ...]:
    if kernels.by == "operator":
        return ("self", "total") if kernels.is_device else ("total",)
    return ("p95", "max")


def _more_cells(kernels: Kernels, row: KernelRow) -> tuple[str, ...]:
    figures: list[int | None] = [row.p95_ns, row.max_ns]
    if kernels.by == "operator":
        figures = [row.self_ns, row.total_ns] if kernels.is_device else [row.total_ns]
    return tuple("–" if ns is None else duration(ns) for ns in figures)


def _cells(calls: int, ns: int | None, share: float | None) -> tuple[str, str, str]:
    return (
        f"{calls:,}",
        "" if ns is None else duration(ns),
        "" if share is None else percent(share),
    )


def _mean(kernels: Kernels, row: KernelRow) -> float:
    return row.measured_ns / row.calls if kernels.by == "operator" else row.mean_ns


TOP: Final = 15
_DEVICES: Final = 8
_COLLECTIVES: Final = 3


def render_kernels(
    kernels: Kernels,
    *,
    top: int = TOP,
    width: int = WIDTH,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """Render a headline on device load, a table of at most ``top`` kernels, and further facts."""
    kernels = choose_rows(kernels, top)
    lines = folded(_first(kernels), width)
    lines.append([(short(_source(kernels, width), width), "dim")])
    lines += incomplete_lines(kernels.windows, width)
    lines += _collectives(kernels, width)
    lines += _each_device(kernels)
    lines += table_lines(kernels, width)
    lines += around(kernels, width)
    if kernels.unread:
        still = f"{plural(kernels.unread, 'more window')} not read yet: not in the figures above"
        lines.append([(still, "yellow")])
    return text(lines, color=color, unicode=unicode)


def _first(kernels: Kernels) -> Line:
    total = kernels.total
    if kernels.step is not None:
        return _of_step(kernels.step, kernels)
    if total is None:
        return _without_device(kernels)
    # With missing records, the actual busy time can only be higher.
    at_least, at_most = ("", "") if kernels.has_device_times else ("at least ", "at most ")
    talk = f", communication {at_least}{_part(total.communication_ns, total)}"
    if total.communication_ns:
        talk += f" ({_part(total.exposed_communication_ns, total)} exposed)"
    elif at_least:
        talk = ""  # "at least 0 %" would be meaningless
    windows = "window" if len(kernels.windows) == 1 else "windows"
    return [
        (f"GPU busy {at_least}{_part(total.busy_ns, total)}", "bold"),
        (f", idle {at_most}{_part(total.idle_ns, total)}", ""),
        (f"{talk} of the {windows}", ""),
    ]


def _of_step(step: ProfiledStepFacts, kernels: Kernels) -> Line:
    """Return a headline: the step's host time, and the device time of the work that it launched.

    The device may run this work after the step has ended.
    """
    took = f": {duration(step.duration_ns)}"
    if len(step.ranks) > 1:
        took += f" in total on {plural(len(step.ranks), 'rank')}"
    line: Line = [(step.name, "bold"), (took, "")]
    if step.busy_ns is None:
        return [*line, (", ", ""), *_without_device(kernels)]
    at_least = "" if kernels.has_device_times else "at least "
    line.append((f", GPU busy with its work for {at_least}{duration(step.busy_ns)}", ""))
    if step.communication_ns:
        exposed = duration(step.exposed_communication_ns or 0)
        talk = f", communication {duration(step.communication_ns)} ({exposed} exposed)"
        line.append((talk, ""))
    return line


def _without_device(kernels: Kernels) -> Line:
    is_damaged = any(window.damage for window in kernels.windows)
    if is_empty(kernels):
        return [("no events", "bold"), (" that could be read" if is_damaged else "", "")]
    nothing, part = "no kernel, copy or memset", " in the part that could be read" * is_damaged
    if unknown := unknown_row_texts(unknown_rows_of(kernels.windows)):
        return [(f"no known device work{part}:", "bold"), (f" {unknown[0]}", "")]
    if is_damaged:
        return [(nothing, "bold"), (part, "")]
    if not kernels.has_device_times:
        return [(nothing, "bold"), (" was recorded, though some were launched", "")]
    return [("CPU only", "bold"), (": no kernel, copy or memset was recorded", "")]


def _collectives(kernels: Kernels, width: int) -> list[Line]:
    """Return a line on collectives in host annotations; empty if device kernels show them."""
    if not kernels.collectives or kernels.communication_ns:
        return []
    shown = [
        f"{duration(collective.total_ns)} in {collective.name} ×{collective.calls:,}"
        for collective in kernels.collectives[:_COLLECTIVES]
    ]
    listed = f": {', '.join(shown)}"
    more = "" if kernels.by == "annotation" else "; --by annotation"
    room = width - columns("collectives" + more)
    return [[("collectives", "bold"), (short(listed, room) + more, "")]]


def _part(ns: int, of: DeviceFigures) -> str:
    return percent(ns / of.window_ns) if of.window_ns else "–"


def _source(kernels: Kernels, width: int) -> str:
    windows = kernels.windows
    ranks = kernels.step.ranks if kernels.step else sorted({window.rank for window in windows})
    ranks_text = f"rank {ranks[0]}" if len(ranks) == 1 else plural(len(ranks), "rank")
    if len(ranks) == 1 and (kernels.world_size or 1) > 1:
        ranks_text += f" of {kernels.world_size}"
    parts = ["", ranks_text]
    parts += [plural(kernels.step.events, "event")] if kernels.step else _extent(windows)
    rest = " · ".join(parts)
    return short(kernels.source, max(_NARROWEST, width - columns(rest))) + rest


def _extent(windows: Sequence[WindowFacts]) -> Iterable[str]:
    if len(windows) > 1:
        yield plural(len(windows), "window")
    yield duration(sum(window.duration_ns for window in windows))
    yield plural(sum(window.events for window in windows), "event")
    if steps := sum(len(window.steps) for window in windows):
        yield plural(steps, "step")


def _each_device(kernels: Kernels) -> list[Line]:
    if len(kernels.devices) < 2:
        return []
    lines: list[Line] = []
    for device in kernels.devices[:_DEVICES]:
        line = f"  rank {device.rank} device {device.device}: busy {_part(device.busy_ns, device)}"
        line += f", idle {_part(device.idle_ns, device)}"
        line += f", communication {_part(device.communication_ns, device)}"
        lines.append([(line, "")])
    if len(kernels.devices) > _DEVICES:
        lines.append([(f"  {plural(len(kernels.devices) - _DEVICES, 'more device')}", "dim")])
    return lines
