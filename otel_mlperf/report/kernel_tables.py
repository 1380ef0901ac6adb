"""How do the kernels of a profiler window look on a terminal?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.report.kernel_facts import around
from otel_mlperf.report.kernel_names import short_names
from otel_mlperf.report.lines import WIDTH, Line, columns, left, short, text
from otel_mlperf.report.quantities import duration, percent, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.profiles.window_shapes import (
        DeviceFigures,
        KernelRow,
        Kernels,
        ProfiledStepFacts,
        WindowFacts,
    )
    from otel_mlperf.report.lines import Style

TOP: Final = 15
_NARROWEST: Final = 16
_SECTION: Final = 15
_DEVICES: Final = 8
_COLLECTIVES: Final = 3
_COLORS: Final[dict[str, Style]] = {"communication": "red", "copy": "yellow"}


def render_kernels(
    kernels: Kernels,
    *,
    top: int = TOP,
    width: int = WIDTH,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """The devices in one line, then the table, what they waited for and moved, and damage."""
    lines: list[Line] = [_first(kernels), [(short(_source(kernels, width), width), "dim")]]
    lines += _collectives(kernels, width)
    lines += _each_device(kernels)
    lines += _table(kernels, top, width)
    lines += around(kernels, width)
    if kernels.unread:
        still = (
            f"{plural(kernels.unread, 'more window')} still to be read: not in the figures above"
        )
        lines.append([(still, "yellow")])
    return text(lines, color=color, unicode=unicode)


def _first(kernels: Kernels) -> Line:
    total = kernels.total
    if kernels.step is not None:
        return _of_step(kernels.step)
    if total is None:
        return _without_device(kernels)
    line = f", idle {_part(total.idle_ns, total)}, communication "
    line += _part(total.communication_ns, total)
    if total.communication_ns:
        line += f" ({_part(total.exposed_communication_ns, total)} exposed)"
    windows = "window" if len(kernels.windows) == 1 else "windows"
    return [(f"GPU busy {_part(total.busy_ns, total)}", "bold"), (f"{line} of the {windows}", "")]


def _of_step(step: ProfiledStepFacts) -> Line:
    """What it took on the host, and devices for it: they may have worked on it later."""
    line = f": {duration(step.duration_ns)}"
    if len(step.ranks) > 1:
        line += f" on {plural(len(step.ranks), 'rank')} together"
    if step.busy_ns is None:
        line += ", CPU only: no kernel, copy or memset was recorded"
    else:
        line += f", GPU busy with it for {duration(step.busy_ns)}"
    if step.communication_ns:
        line += f", communication {duration(step.communication_ns)}"
        line += f" ({duration(step.exposed_communication_ns or 0)} exposed)"
    return [(step.name, "bold"), (line, "")]


def _without_device(kernels: Kernels) -> Line:
    is_damaged = any(window.damage for window in kernels.windows)
    if _is_empty(kernels):
        return [("no events", "bold"), (" that could be read" if is_damaged else "", "")]
    nothing = "no kernel, copy or memset"
    if is_damaged:
        return [(nothing, "bold"), (" in the part that could be read", "")]
    return [("CPU only", "bold"), (f": {nothing} was recorded", "")]


def _is_empty(kernels: Kernels) -> bool:
    return not (any(window.events for window in kernels.windows) or kernels.memory)


def _collectives(kernels: Kernels, width: int) -> list[Line]:
    """What went on between ranks, where no kernel shows it."""
    if not kernels.collectives or kernels.communication_ns:
        return []
    shown = [
        f"{duration(collective.total_ns)} in {collective.name} ×{collective.calls:,}"
        for collective in kernels.collectives[:_COLLECTIVES]
    ]
    words = f": {', '.join(shown)}"
    more = "" if kernels.by == "annotation" else "; --by annotation"
    room = width - columns("collectives" + more)
    return [[("collectives", "bold"), (short(words, room) + more, "")]]


def _part(ns: int, of: DeviceFigures) -> str:
    return percent(ns / of.window_ns) if of.window_ns else "–"


def _source(kernels: Kernels, width: int) -> str:
    windows = kernels.windows
    ranks = kernels.step.ranks if kernels.step else sorted({window.rank for window in windows})
    told = f"rank {ranks[0]}" if len(ranks) == 1 else plural(len(ranks), "rank")
    if len(ranks) == 1 and (kernels.world_size or 1) > 1:
        told += f" of {kernels.world_size}"
    parts = ["", told]
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
    """A line for each device where there are several."""
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


def _table(kernels: Kernels, top: int, width: int) -> list[Line]:
    shown, rest = kernels.rows[:top], kernels.rows[top:]
    if not shown:
        return [[(f"  {short(line, width - 2)}", "dim")] for line in _nothing(kernels)]
    cells = [_cells(row.calls, row.measured_ns, row.share, _mean(kernels, row)) for row in shown]
    if rest:
        cells.append(_cells(*(sum(column) for column in zip(*map(_measures, rest), strict=True))))
    cells.insert(0, (*_heads(kernels), "mean"))
    wide = [max(map(columns, column)) + 2 for column in zip(*cells, strict=True)]
    longest = max(columns(row.section) for row in shown)
    section = min(max(longest, len("section")), _SECTION) if longest else 0
    name = max(_NARROWEST, width - 2 - sum(wide) - (section + 2 if section else 0))
    numbers = [
        "".join(f"{cell:>{room}}" for cell, room in zip(row, wide, strict=True)) for row in cells
    ]
    title = f"  {left(kernels.by, name)}{numbers[0]}{'  section' if section else ''}"
    lines: list[Line] = [[(title, "dim")]]
    # All at once: how far a name is shortened depends on its likes in the table.
    names = short_names([row.name for row in shown], name)
    for row, label, cell in zip(shown, names, numbers[1:], strict=False):
        styled = (f"  {left(label, name)}", _COLORS.get(row.kind, ""))
        lines.append([styled, (cell, ""), (f"  {short(row.section, section)}", "dim")])
    if rest:
        lines.append([(f"  {left(f'{len(rest):,} more', name)}{numbers[-1]}", "dim")])
    return lines


def _nothing(kernels: Kernels) -> Iterable[str]:
    """Why there are no such rows, and of what there are some."""
    if _is_empty(kernels):
        return
    if kernels.by == "phase":
        yield "no phase is known: the window was not recorded in the steps of a run"
    elif kernels.by in ("kernel", "stream"):
        yield f"no {kernels.by}: no device was at work"
    else:
        worker = "a device" if kernels.is_device else "an operator"
        yield f"no {kernels.by} in which {worker} was at work"
    there = [f"--by {by} ({plural(rows, 'row')})" for by, rows in kernels.groups.items() if rows]
    if there:
        yield f"there is: {', '.join(there)}"


def _heads(kernels: Kernels) -> tuple[str, str, str]:
    """What the count and the total are called, and of what the share is."""
    of_time = "of step" if kernels.step else "of window"
    if kernels.by == "operator":
        return ("calls", "on GPU", "of busy") if kernels.is_device else ("calls", "self", "of self")
    if kernels.by == "stream":
        return "kernels", "busy", of_time
    share = "of busy" if kernels.is_device and kernels.by != "annotation" else of_time
    if kernels.by in ("section", "phase", "step"):
        return "kernels" if kernels.is_device else "operators", "total", share
    return "calls", "total", share


def _cells(calls: float, ns: float, share: float, mean: float | None = None) -> tuple[str, ...]:
    return f"{calls:,}", duration(ns), percent(share), "" if mean is None else duration(mean)


def _measures(row: KernelRow) -> tuple[float, float, float]:
    return row.calls, row.measured_ns, row.share


def _mean(kernels: Kernels, row: KernelRow) -> float:
    return row.measured_ns / row.calls if kernels.by == "operator" else row.mean_ns
