"""Terminal lines on profiler windows: losses, waits, launches, copies, memory and damage."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import duration, percent, plural, size
from otel_mlperf.report.kernel_names import short_name
from otel_mlperf.terminal_lines import broken, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_mlperf.analysis.profiles.window_shapes import (
        AllocatorPeak,
        CollectiveKernels,
        CopyFigures,
        DeviceFigures,
        Kernels,
        WindowFacts,
    )
    from otel_mlperf.store.window_facts import CapturedWork, UnknownRows
    from otel_mlperf.tables.window_tables import GapRow
    from otel_mlperf.terminal_lines import Line, Style

_MAX_WINDOWS: Final = 3
_MAX_LOSSES: Final = 4
_LONGEST: Final = 4_096
"""Maximum characters per line, because names of steps in a trace file may be of any length."""


def incomplete_lines(windows: Sequence[WindowFacts], width: int) -> list[Line]:
    """Return lines on windows that lack records: the losses, and the load in a complete part."""
    incomplete = [
        (window, losses_line) for window in windows if (losses_line := losses_text(window))
    ]
    lines: list[Line] = []
    for window, losses_line in incomplete[:_MAX_WINDOWS]:
        of = f"{window.trace}, rank {window.rank}: " if len(windows) > 1 else ""
        line = short(f"incomplete: {of}{losses_line}", _LONGEST)
        lines += [[(part, "red")] for part in textwrap.wrap(line, width, subsequent_indent="  ")]
    if len(incomplete) > _MAX_WINDOWS:
        more = plural(len(incomplete) - _MAX_WINDOWS, "more window")
        lines.append([(f"  and {more} incomplete", "red")])
    return lines


def losses_text(window: WindowFacts) -> str:
    """Return what is missing from a window as text; empty if the window is complete."""
    losses = window.completeness.losses if window.completeness else []
    texts = [loss.words for loss in losses[:_MAX_LOSSES]]
    if len(losses) > _MAX_LOSSES:
        texts.append(f"{len(losses) - _MAX_LOSSES} more in --json")
    return "; ".join([*texts, *_whole(window)])


def _whole(window: WindowFacts) -> Iterable[str]:
    """Yield a text on a window's complete part and its load; nothing if no such part is known."""
    whole = window.completeness.whole if window.completeness else None
    if whole is None:
        return
    begin, end = ((at - window.start_ns) / 1e6 for at in (whole.start_ns, whole.end_ns))
    length_ns = whole.end_ns - whole.start_ns
    busy = ", ".join(percent(device.busy_ns / length_ns) for device in whole.devices)
    yield f"complete from {begin:,.1f} to {end:,.1f} ms (GPU busy {busy})"


def answered_text(windows: Iterable[WindowFacts]) -> str:
    """Return as text how many kernel launches have a device record; empty without launches."""
    known = [window.completeness for window in windows if window.completeness]
    launches = sum(completeness.launches for completeness in known)
    answered = sum(completeness.answered for completeness in known)
    return f"{answered:,} of {launches:,} launches have a device record" if launches else ""


_GAPS: Final = 3
_LABEL: Final = 9
_MIN_OVERLAP: Final = 0.001
"""Minimum overlap to report, as a share of busy time; less is due to times in microseconds."""
_ROUNDING_NS: Final = 1_000
"""Rounding error per record in traces whose times are in whole microseconds."""
_PROCESSES: Final = 3
_WAITING: Final = {
    "start": " before the first device work",
    "host_wait": "",
    "device_wait": " after the next work was launched",
    "unknown_wait": "",
    "end": " after the last device work",
}
_CPU: Final = 0
_OUTSIDE: Final = "outside_steps"
"""Kind of orphan that is not reported, because the table by step has a row for such work."""


def around(kernels: Kernels, width: int) -> list[Line]:
    """Return the lines below the table of kernels; lines of the same kind share one label."""
    facts: list[tuple[str, str]] = []
    if kernels.total is not None:
        facts += _kinds(kernels.total)
        facts += _overlap(kernels.total)
        facts += _idle(kernels.total, kernels.gaps, len(kernels.devices))
        facts += _launches(kernels.total)
        facts += _answered(kernels.windows)
    # Kernels of unknown size are skipped: the line would only repeat their row in the table.
    sized = [kernel for kernel in kernels.collective_kernels if kernel.bytes is not None]
    facts += [("comm", _collective(kernel)) for kernel in sized]
    facts += [("copies", _copy(copy)) for copy in kernels.copies]
    is_device = any(peak.device_type != _CPU for peak in kernels.memory)
    memory = [peak for peak in kernels.memory if (peak.device_type != _CPU) == is_device]
    facts += [("memory", line) for peak in memory for line in _peak(peak, len(memory))]
    facts += _captured(kernels.windows)
    facts += _unlinked(kernels.windows)
    in_headline = 1 if kernels.total is None else 0
    unknown = unknown_row_texts(unknown_rows_of(kernels.windows))
    facts += [("unknown", line) for line in unknown[in_headline:]]
    facts += _damage(kernels.windows)
    lines: list[Line] = []
    before = ""
    for label, line in facts:
        style: Style = "red" if label == "damaged" else ""
        for part in broken(line, width - _LABEL):
            head = f"{label if label != before else '':<{_LABEL}}"
            lines.append([(head, style or "dim"), (part, style)])
            before = label
    return lines


def _kinds(total: DeviceFigures) -> Iterable[tuple[str, str]]:
    """Yield the time of each kind of device work, including time in which kinds overlap."""
    exposed = f" ({duration(total.exposed_copy_ns)} exposed)" if total.copy_ns else ""
    kinds = [
        (total.compute_ns, "compute", ""),
        (total.communication_ns, "communication", ""),
        (total.copy_ns, "copies", exposed),
    ]
    texts = [f"{kind} {duration(ns)}{more}" for ns, kind, more in kinds if ns]
    if len(texts) > 1:
        yield "work", ", ".join(texts)


def _overlap(total: DeviceFigures) -> Iterable[tuple[str, str]]:
    # The lower of two limits: a single wrong, very long duration would raise the first limit.
    if total.overlap_ns > min(_MIN_OVERLAP * total.busy_ns, _ROUNDING_NS * total.count):
        line = (
            f"work on the same stream overlaps by {duration(total.overlap_ns)}: normal for graphs, "
        )
        line += "dependent launches and XLA loops; otherwise the recorded durations are too long"
        yield "overlap", line


def _idle(total: DeviceFigures, gaps: list[GapRow], devices: int) -> Iterable[tuple[str, str]]:
    if total.gaps:
        other = total.idle_ns != total.gap_ns
        before = f"{duration(total.idle_ns)}, of which " if other else ""
        yield "idle", f"{before}{duration(total.gap_ns)} in {plural(total.gaps, 'gap')}"
        waits = f"{duration(total.host_wait_ns)} waiting for the host, "
        waits += f"{duration(total.device_wait_ns)} for the device"
        if total.unknown_wait_ns:
            waits += f", {duration(total.unknown_wait_ns)} unknown"
        yield "idle", waits
    for gap in gaps[:_GAPS]:
        host = (
            (f"host in {short_name(gap.operator, 40)}")
            if gap.operator
            else "host outside operators"
        )
        which = f", rank {gap.rank} device {gap.device}" if devices > 1 else ""
        yield "longest", f"gap of {duration(gap.duration_ns)}{_WAITING[gap.cause]}, {host}{which}"


def _launches(total: DeviceFigures) -> Iterable[tuple[str, str]]:
    if total.delay_p50_ns is not None and total.delay_p95_ns is not None and total.delay_max_ns:
        line = f"delay from call to start: p50 {duration(total.delay_p50_ns)}, "
        line += f"p95 {duration(total.delay_p95_ns)}, max {duration(total.delay_max_ns)}"
        yield "launch", line


def _answered(windows: list[WindowFacts]) -> Iterable[tuple[str, str]]:
    if line := answered_text(windows):
        yield "launch", line


def _collective(kernels: CollectiveKernels) -> str:
    of = f" of {plural(kernels.group_size, 'rank')}" if kernels.group_size else ""
    line = f"{kernels.operation}{of} ×{kernels.calls:,}: {duration(kernels.total_ns)}"
    line += f", {size(kernels.bytes or 0)}"
    if kernels.bus_bytes_per_s is not None:
        line += f", bus bandwidth {size(kernels.bus_bytes_per_s)}/s"
    return line


def _copy(copy: CopyFigures) -> str:
    line = f"{copy.name} ×{copy.calls:,}: {duration(copy.total_ns)}"
    if copy.bytes is not None:
        line += f", {size(copy.bytes)}"
    if copy.bytes_per_s is not None:
        line += f" at {size(copy.bytes_per_s)}/s"
    return line


def _peak(peak: AllocatorPeak, devices: int) -> Iterable[str]:
    if peak.allocated_bytes is None:
        return
    line = f"peak {size(peak.allocated_bytes, 1024)} allocated"
    if peak.reserved_bytes is not None and peak.device_type != _CPU:
        line += f" of {size(peak.reserved_bytes, 1024)} reserved"
    line += f", rank {peak.rank} device {peak.device}" if devices > 1 else ""
    then = [short_name(name, 40) for name in (peak.section, peak.operator) if name]
    yield line + (f", in {', '.join(then)}" if then else "")


def _captured(windows: list[WindowFacts]) -> Iterable[tuple[str, str]]:
    for window in windows:
        if window.captured is not None:
            yield "graphs", captured_texts(window.captured)


def captured_texts(captured: CapturedWork) -> str:
    """Return as text how many kernels and copies of CUDA graphs were assigned to an operator.

    It is the operator that ran when the kernel or copy was captured into its graph.
    """
    if not captured.work:
        return f"no graph launches found to which the captures in {captured.capture} apply"
    line = (
        f"{captured.matched:,} of {captured.work:,} kernels and copies of graphs were assigned to "
    )
    line += f"operators by {plural(captured.captures, 'capture')} in {captured.capture}"
    return "; ".join([line, *(f"{n:,} {reason}" for reason, n in captured.unmatched.items())])


def unknown_rows_of(windows: Iterable[WindowFacts]) -> Iterable[UnknownRows]:
    """Yield, over all windows, the timeline rows that were not recognized as device work."""
    for window in windows:
        yield from window.unknown_rows


def unknown_row_texts(unknown: Iterable[UnknownRows]) -> list[str]:
    """Return a sentence on the rows of each process, for the processes with most events."""
    counts: Counter[tuple[bool, str]] = Counter()
    for rows in unknown:
        counts[rows.is_device, rows.process] += rows.events
    return [
        f"{'device rows' if is_device else 'rows'} of process {short_name(process, 40) or '?'} "
        f"({plural(events, 'event')}) have unknown types"
        for (is_device, process), events in counts.most_common(_PROCESSES)
    ]


def _unlinked(windows: list[WindowFacts]) -> Iterable[tuple[str, str]]:
    counts: Counter[str] = Counter()
    for window in windows:
        counts.update(window.orphans)
    counts.pop(_OUTSIDE, None)
    if counts:
        texts = (f"{count:,} × {kind.replace('_', ' ')}" for kind, count in counts.items())
        yield "unlinked", ", ".join(texts)


def _damage(windows: list[WindowFacts]) -> Iterable[tuple[str, str]]:
    for window in windows:
        of = f"{window.trace}: " if len(windows) > 1 else ""
        for damage in window.damage:
            times = f"{damage['occurrences']:,}× " if damage["occurrences"] > 1 else ""
            kind = str(damage["kind"]).replace("_", " ")
            yield (
                "damaged",
                f"{of}{times}{kind}, first at byte {damage['offset']:,}: {damage['example']}",
            )
