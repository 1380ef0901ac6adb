"""What is told below the table of kernels: waits, launches, copies, memory and damage?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.report.kernel_names import short_name
from otel_mlperf.report.lines import short
from otel_mlperf.report.quantities import duration, plural, size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.analysis.profiles.window_shapes import (
        AllocatorPeak,
        CopyFigures,
        DeviceFigures,
        GapFigures,
        Kernels,
        WindowFacts,
    )
    from otel_mlperf.report.lines import Line, Style

_GAPS: Final = 3
_LABEL: Final = 9
_WAITING: Final = {
    "start": " before the first work",
    "host_wait": "",
    "device_wait": " though launched",
    "unknown_wait": "",
    "end": " after the last work",
}
_CPU: Final = 0


def around(found: Kernels, width: int) -> list[Line]:
    """Each with a label, which is written once."""
    told: list[tuple[str, str]] = []
    if found.total is not None:
        told += _idle(found.total, found.gaps)
        told += _launches(found.total)
    told += [("copies", _copy(copy)) for copy in found.copies]
    memory = [peak for peak in found.memory if peak.device_type != _CPU]
    told += [("memory", words) for one in memory for words in _peak(one, len(memory))]
    told += _damage(found.windows)
    lines: list[Line] = []
    before = ""
    for label, words in told:
        head = f"{label if label != before else '':<{_LABEL}}"
        style: Style = "red" if label == "damaged" else ""
        lines.append([(head, style or "dim"), (short(words, width - _LABEL), style)])
        before = label
    return lines


def _idle(total: DeviceFigures, gaps: list[GapFigures]) -> Iterable[tuple[str, str]]:
    if total.gaps:
        other = total.idle_ns != total.gap_ns
        before = f"{duration(total.idle_ns)}, of which " if other else ""
        yield "idle", f"{before}{duration(total.gap_ns)} in {plural(total.gaps, 'gap')}"
        waits = f"{duration(total.host_wait_ns)} waiting for the host, "
        waits += f"{duration(total.device_wait_ns)} for the device"
        if total.unknown_wait_ns:
            waits += f", {duration(total.unknown_wait_ns)} not known"
        yield "idle", waits
    for gap in gaps[:_GAPS]:
        host = f"host in {short_name(gap.operator, 40)}" if gap.operator else "host in no operator"
        yield "longest", f"{duration(gap.duration_ns)}{_WAITING[gap.cause]}, {host}"


def _launches(total: DeviceFigures) -> Iterable[tuple[str, str]]:
    if total.delay_p50_ns is not None and total.delay_p95_ns is not None and total.delay_max_ns:
        words = f"p50 {duration(total.delay_p50_ns)} from call to start, "
        words += f"p95 {duration(total.delay_p95_ns)}, max {duration(total.delay_max_ns)}"
        yield "launch", words


def _copy(one: CopyFigures) -> str:
    words = f"{one.name} ×{one.calls:,}: {duration(one.total_ns)}"
    if one.bytes is not None:
        words += f", {size(one.bytes)}"
    if one.bytes_per_s is not None:
        words += f" at {size(one.bytes_per_s)}/s"
    return words


def _peak(one: AllocatorPeak, devices: int) -> Iterable[str]:
    if one.allocated_bytes is None:
        return
    words = f"peak {size(one.allocated_bytes, 1024)} allocated"
    if one.reserved_bytes is not None:
        words += f" of {size(one.reserved_bytes, 1024)} reserved"
    yield words + (f", rank {one.rank} device {one.device}" if devices > 1 else "")


def _damage(windows: list[WindowFacts]) -> Iterable[tuple[str, str]]:
    for window in windows:
        of = f"{window.trace}: " if len(windows) > 1 else ""
        for one in window.damage:
            times = f"{one['occurrences']:,}× " if one["occurrences"] > 1 else ""
            kind = str(one["kind"]).replace("_", " ")
            yield "damaged", f"{of}{times}{kind}, first at byte {one['offset']:,}: {one['example']}"
