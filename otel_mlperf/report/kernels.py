"""How do the kernels of a profiler window look on a terminal?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.report.kernel_names import short_name
from otel_mlperf.report.lines import WIDTH, Line, left, short, text
from otel_mlperf.report.quantities import duration, figures, percent, plural

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.analysis.windows import (
        CopyFigures,
        DeviceFigures,
        GapFigures,
        KernelRow,
        Kernels,
        WindowFacts,
    )
    from otel_mlperf.report.lines import Style

TOP: Final = 15
_NARROWEST: Final = 28
_SECTION: Final = 15
_DEVICES: Final = 8
_NUMBERS: Final = 35
"""Columns of calls, total, share and mean."""
_LABEL: Final = 9
_COLORS: Final[dict[str, Style]] = {"communication": "red", "copy": "yellow"}
_SHARES: Final = {
    "stream": "busy",
    "annotation": "window",
}
_WAITING: Final = {
    "start": "before the first work",
    "host_wait": "waiting for the host",
    "device_wait": "launched, not yet begun",
    "unknown_wait": "why is not known",
    "end": "after the last work",
}
_CPU: Final = 0


def render_kernels(
    found: Kernels,
    *,
    top: int = TOP,
    width: int = WIDTH,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """The devices in one line, then the table, then what they waited for and moved."""
    lines: list[Line] = [_first(found), [(short(_source(found), width), "dim")]]
    lines += _each_device(found)
    lines += _table(found, top, width)
    lines += _around(found, width)
    lines += _damage(found.windows, width)
    return text(lines, color=color, unicode=unicode)


def _first(found: Kernels) -> Line:
    total = found.total
    if total is None:
        return [("CPU only", "bold"), (": no kernel, copy or memset in the trace", "")]
    line = f", idle {_part(total.idle_ns, total)}, communication "
    line += _part(total.communication_ns, total)
    if total.communication_ns:
        line += f" ({_part(total.exposed_communication_ns, total)} exposed)"
    return [(f"GPU busy {_part(total.busy_ns, total)}", "bold"), (line, "")]


def _part(ns: int, of: DeviceFigures) -> str:
    return percent(ns / of.window_ns) if of.window_ns else "–"


def _source(found: Kernels) -> str:
    windows = found.windows
    ranks = sorted({window.rank for window in windows})
    told = f"rank {ranks[0]}" if len(ranks) == 1 else plural(len(ranks), "rank")
    if len(ranks) == 1 and (found.world_size or 1) > 1:
        told += f" of {found.world_size}"
    parts = [found.source, told]
    if len(windows) > 1:
        parts.append(plural(len(windows), "window"))
    parts.append(duration(sum(window.duration_ns for window in windows)))
    parts.append(plural(sum(window.events for window in windows), "event"))
    steps = [step for window in windows for step in window.steps]
    if steps:
        parts.append(plural(len(steps), "step"))
    return " · ".join(parts)


def _each_device(found: Kernels) -> list[Line]:
    """A line for each device where there are several."""
    if len(found.devices) < 2:
        return []
    lines: list[Line] = []
    for one in found.devices[:_DEVICES]:
        line = f"  rank {one.rank} device {one.device}: busy {_part(one.busy_ns, one)}"
        line += f", idle {_part(one.idle_ns, one)}"
        line += f", communication {_part(one.communication_ns, one)}"
        lines.append([(line, "")])
    if len(found.devices) > _DEVICES:
        lines.append([(f"  {plural(len(found.devices) - _DEVICES, 'more device')}", "dim")])
    return lines


def _table(found: Kernels, top: int, width: int) -> list[Line]:
    shown, rest = found.rows[:top], found.rows[top:]
    if not shown:
        return [[(_nothing(found), "dim")]]
    beside = any(row.section for row in shown)
    name = max(_NARROWEST, width - 2 - _NUMBERS - (_SECTION + 2 if beside else 0))
    total, share = _heads(found)
    title = f"  {left(found.by, name)}{'calls':>8}{total:>10}{share:>7}{'mean':>10}"
    lines: list[Line] = [[(title + ("  section" if beside else ""), "dim")]]
    lines += [
        [*_row(found, row, name), (f"  {short(row.section, _SECTION)}", "dim")] for row in shown
    ]
    if rest:
        lines.append([(_others(rest, name), "dim")])
    return lines


def _nothing(found: Kernels) -> str:
    if found.by in ("phase", "step"):
        return f"  no {found.by} is known: the window was not recorded in the steps of a run"
    return f"  no {found.by} in the trace"


def _heads(found: Kernels) -> tuple[str, str]:
    """What the total and the share are called."""
    if found.by == "operator":
        return ("on device", "busy") if found.total else ("self", "share")
    if not found.total:
        return "total", "window"
    return ("busy", "window") if found.by == "stream" else ("total", _SHARES.get(found.by, "busy"))


def _row(found: Kernels, row: KernelRow, width: int) -> Line:
    name = left(short_name(row.name, width), width)
    line = f"{row.calls:>8,}{duration(row.measured_ns):>10}{percent(row.share):>7}"
    mean = row.measured_ns / row.calls if found.by == "operator" else row.mean_ns
    return [(f"  {name}", _COLORS.get(row.kind, "")), (f"{line}{duration(mean):>10}", "")]


def _others(rows: list[KernelRow], width: int) -> str:
    calls = sum(row.calls for row in rows)
    total = duration(sum(row.measured_ns for row in rows))
    share = percent(sum(row.share for row in rows))
    return f"  {left(f'{len(rows):,} more', width)}{calls:>8,}{total:>10}{share:>7}"


def _around(found: Kernels, width: int) -> list[Line]:
    told: list[tuple[str, str]] = []
    if found.total is not None:
        told += _idle(found.total, found.gaps)
        told += _launches(found.total)
    told += [("copies", _copy(one)) for one in found.copies]
    told += [
        ("memory", _peak(one.device, one.allocated_bytes, one.reserved_bytes, len(found.memory)))
        for one in found.memory
        if one.device_type != _CPU and one.allocated_bytes is not None
    ]
    lines: list[Line] = []
    before = ""
    for label, words in told:
        head = label if label != before else ""
        lines.append([(f"{head:<{_LABEL}}", "dim"), (short(words, width - _LABEL), "")])
        before = label
    return lines


def _idle(total: DeviceFigures, gaps: list[GapFigures]) -> Iterable[tuple[str, str]]:
    if total.gaps:
        waits = f"{duration(total.gap_ns)} in {plural(total.gaps, 'gap')}: "
        waits += f"{duration(total.host_wait_ns)} waiting for the host, "
        waits += f"{duration(total.device_wait_ns)} launched already"
        if total.unknown_wait_ns:
            waits += f", {duration(total.unknown_wait_ns)} unknown"
        yield "idle", waits
    for gap in gaps[:3]:
        host = f"host in {short_name(gap.operator, 40)}" if gap.operator else "host in no operator"
        yield "idle", f"{duration(gap.duration_ns)} {_WAITING[gap.cause]}, {host}"


def _launches(total: DeviceFigures) -> Iterable[tuple[str, str]]:
    if total.delay_p50_ns is not None and total.delay_p95_ns is not None:
        words = f"p50 {duration(total.delay_p50_ns)} from call to start, "
        words += f"p95 {duration(total.delay_p95_ns)}, max {duration(total.delay_max_ns or 0)}"
        yield "launch", words


def _copy(one: CopyFigures) -> str:
    words = f"{plural(one.calls, 'call')} {one.name}: {duration(one.total_ns)}"
    if one.bytes is not None:
        words += f", {size(one.bytes)}"
    if one.bytes_per_s is not None:
        words += f" at {size(one.bytes_per_s)}/s"
    return words + (" (pageable)" if one.pageable else "")


def _peak(device: int, allocated: int, reserved: int | None, devices: int) -> str:
    words = f"peak {size(allocated, 1024)} allocated"
    if reserved is not None and reserved > 0:
        words += f" of {size(reserved, 1024)} reserved"
    return words + (f", device {device}" if devices > 1 else "")


def _damage(windows: list[WindowFacts], width: int) -> list[Line]:
    lines: list[Line] = []
    for window in windows:
        for one in window.damage:
            times = f"{one['occurrences']:,}× " if one["occurrences"] > 1 else ""
            kind = str(one["kind"]).replace("_", " ")
            line = f"damaged  {times}{kind}, first at byte {one['offset']:,}: {one['example']}"
            lines.append([(short(line, width), "red")])
    return lines


def size(count: float, step: int = 1000) -> str:
    """Bytes with the unit that suits them: ``307 MB``; by 1024 ``6.17 GiB``."""
    letters = "KMGTP" if step == 1024 else "kMGTP"
    if count < step:
        return f"{count:,.0f} B"
    for letter in letters:
        count /= step
        if count < step * 0.9995 or letter == letters[-1]:
            break
    return f"{figures(count)} {letter}{'iB' if step == 1024 else 'B'}"
