"""Terminal rendering of the kernels of profiler windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.profiles.kernel_rows import choose_rows
from otel_mlperf.quantities import duration, percent, plural
from otel_mlperf.report.completeness_lines import incomplete_lines
from otel_mlperf.report.kernel_columns import is_empty, table_lines
from otel_mlperf.report.kernel_facts import around, unknown_row_texts, unknown_rows_of
from otel_mlperf.terminal_lines import WIDTH, Line, columns, folded, short, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.profiles.window_shapes import (
        DeviceFigures,
        Kernels,
        ProfiledStepFacts,
        WindowFacts,
    )

TOP: Final = 15
_NARROWEST: Final = 16
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
    """Render the devices in one line, then the table, waits, copies, and damage."""
    kernels = choose_rows(kernels, top)
    lines = folded(_first(kernels), width)
    lines.append([(short(_source(kernels, width), width), "dim")])
    lines += incomplete_lines(kernels.windows, width)
    lines += _collectives(kernels, width)
    lines += _each_device(kernels)
    lines += table_lines(kernels, width)
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
        return _of_step(kernels.step, kernels)
    if total is None:
        return _without_device(kernels)
    # With missing records, the actual busy time can only be higher.
    least, most = ("", "") if kernels.has_device_times else ("at least ", "at most ")
    talk = f", communication {least}{_part(total.communication_ns, total)}"
    if total.communication_ns:
        talk += f" ({_part(total.exposed_communication_ns, total)} exposed)"
    elif least:
        talk = ""  # "at least 0 %" would be meaningless
    windows = "window" if len(kernels.windows) == 1 else "windows"
    return [
        (f"GPU busy {least}{_part(total.busy_ns, total)}", "bold"),
        (f", idle {most}{_part(total.idle_ns, total)}", ""),
        (f"{talk} of the {windows}", ""),
    ]


def _of_step(step: ProfiledStepFacts, kernels: Kernels) -> Line:
    """Return the step's time on the host, and the device time of its work, which may run later."""
    took = f": {duration(step.duration_ns)}"
    if len(step.ranks) > 1:
        took += f" on {plural(len(step.ranks), 'rank')} together"
    line: Line = [(step.name, "bold"), (took, "")]
    if step.busy_ns is None:
        return [*line, (", ", ""), *_without_device(kernels)]
    least = "" if kernels.has_device_times else "at least "
    line.append((f", GPU busy with it for {least}{duration(step.busy_ns)}", ""))
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
        return [(nothing, "bold"), (" is there of those that were launched", "")]
    return [("CPU only", "bold"), (": no kernel, copy or memset was recorded", "")]


def _collectives(kernels: Kernels, width: int) -> list[Line]:
    """Return the collectives between ranks, if no kernel shows them."""
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
    """Return a line per device, if there are several."""
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
