"""Summary of an imported profiler trace file: as structs for ``--json``, and as text."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from otel_mlperf.quantities import duration, percent, plural
from otel_mlperf.report.kernel_facts import captured_texts, unknown_row_texts
from otel_mlperf.report.kernel_names import short_names
from otel_mlperf.store.window_facts import (
    KERNEL,
    CapturedWork,
    UnknownRows,
    WindowCompleteness,
)
from otel_mlperf.terminal_lines import WIDTH, Line, broken, left, short

if TYPE_CHECKING:
    from otel_mlperf.kineto.convert import Conversion

_MAX_KERNELS = 5
_NAME = 48


class TopKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One of the kernels with the longest total time in a trace file."""

    name: str
    calls: int
    total_ns: int
    share: float | None
    """Share of the devices' busy time; above 1 for concurrent streams, None without a device."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """Result of importing one trace file."""

    file: str
    digest: str
    rank: int
    is_rank_known: bool
    world_size: int | None
    devices: list[str]
    """Names of the devices as recorded in the file."""
    duration_ns: int
    steps: list[str]
    is_unix_time: bool
    entries: dict[str, int]
    """Number of the file's entries by event type (``ph``)."""
    events: int
    spans: int
    roll_ups: int
    rolled_up: int
    traces: list[str]
    busy_ns: int | None
    """Busy time, summed over the devices; None: no known device ran any work."""
    idle_ns: int | None
    kernels: list[TopKernel]
    orphans: dict[str, int]
    damage: list[dict[str, Any]]
    completeness: WindowCompleteness
    """Completeness of the window, as in ``kernels --json``."""
    busy_devices: int = 0
    """Number of devices with known work, including those that the file does not name."""
    unknown_rows: list[UnknownRows] = []
    """Timeline rows that may belong to a device, and that no device figure includes."""
    captured: CapturedWork | None = None
    """Graph work matched with the trace of its capture; None: no such trace was given."""
    is_empty: bool = False
    run: str | None = None
    is_run_new: bool = False
    is_replaced: bool = False
    """Whether the run already had this very trace, which was therefore replaced."""
    note: str = ""
    """Reasons why the trace seems to belong to another run; empty if there are none."""
    sent: int | None = None
    refused: int | None = None
    out: str | None = None


class ImportedTraces(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="imported/1"
):
    """Results of importing trace files, in the order of the command's arguments."""

    traces: list[Imported]


def describe(converted: Conversion, file: str, **outcome: Any) -> Imported:
    """Return the summary of a converted trace; ``outcome`` sets further fields such as ``run``."""
    trace, numbers, replayed = converted.trace, converted.numbers, converted.replayed
    busy = sum(device.busy_ns for device in numbers.devices) if numbers.devices else None
    idle = sum(device.idle_ns for device in numbers.devices) if numbers.devices else None
    return Imported(
        file=file,
        digest=trace.digest,
        rank=converted.rank,
        is_rank_known=converted.window is not None or trace.rank is not None,
        world_size=trace.world_size,
        devices=[str(device.get("name", "")) for device in trace.devices if device.get("name")],
        duration_ns=numbers.end_ns - numbers.start_ns,
        steps=list(numbers.steps),
        is_unix_time=trace.is_unix_time,
        entries=dict(trace.counts),
        events=converted.events,
        spans=converted.kept,
        roll_ups=converted.roll_ups,
        rolled_up=converted.rolled_up,
        traces=[trace.hex() for trace in _used(converted)],
        busy_ns=busy,
        idle_ns=idle,
        kernels=_kernels(converted, busy),
        orphans=dict(converted.links.orphans),
        damage=[damage._asdict() for damage in trace.damage],
        completeness=converted.completeness,
        busy_devices=len(numbers.devices),
        unknown_rows=numbers.unknown_rows,
        captured=replayed.facts if replayed else None,
        is_empty=converted.is_empty,
        **outcome,
    )


def _used(converted: Conversion) -> list[bytes]:
    """Return the ids of the OpenTelemetry traces that contain spans of the file."""
    places = converted.spans.places
    used = np.unique(places.trace[~places.hidden])
    return [places.traces[at] for at in used.tolist()]


def _kernels(converted: Conversion, busy_ns: int | None) -> list[TopKernel]:
    work = [total for total in converted.numbers.totals if total.what == KERNEL]
    by_name: dict[str, tuple[int, int]] = {}
    for total in work:
        calls, spent = by_name.get(total.name, (0, 0))
        by_name[total.name] = calls + total.count, spent + total.total_ns
    longest = sorted(by_name.items(), key=lambda item: (-item[1][1], item[0]))[:_MAX_KERNELS]
    return [
        TopKernel(
            name=name, calls=calls, total_ns=spent, share=spent / busy_ns if busy_ns else None
        )
        for name, (calls, spent) in longest
    ]


def imported_lines(imported: Imported, width: int = WIDTH) -> list[Line]:
    """Return the summary of one imported file as terminal lines."""
    lines: list[Line] = [[(short(PurePath(imported.file).name, width), "bold")]]
    lines.append([(f"  {_about(imported)}", "")])
    spans = plural(imported.spans, "span")
    spans += f" and {plural(imported.roll_ups, 'roll-up')}" if imported.roll_ups else ""
    into = plural(len(imported.traces), "trace")
    lines.append([(f"  {plural(imported.events, 'event')} → {spans} in {into}", "")])
    if imported.busy_ns is not None and imported.idle_ns is not None:
        whole = max(1, imported.busy_ns + imported.idle_ns)
        busy, idle = percent(imported.busy_ns / whole), percent(imported.idle_ns / whole)
        at_least = "" if imported.completeness.has_device_times else "at least "
        line = f"  GPU busy {at_least}{busy} ({duration(imported.busy_ns)})"
        lines.append([(line + f", idle {'at most ' if at_least else ''}{idle}", "")])
    lines += _kernel_lines(imported.kernels)
    for message in unknown_row_texts(imported.unknown_rows):
        lines += [[(f"  {part}", "")] for part in broken(message, width - 2)]
    if imported.captured is not None:
        captured = broken(captured_texts(imported.captured), width - 2)
        lines += [[(f"  {part}", "")] for part in captured]
    for kind, count in imported.orphans.items():
        lines.append([(f"  {count:,} × {kind.replace('_', ' ')}", "dim")])
    for loss in imported.completeness.losses:
        lines.append([("  " + short(f"incomplete: {loss.words}", width - 2), "red")])
    for damage in imported.damage:
        message = f"{damage['kind'].replace('_', ' ')} ×{damage['occurrences']:,}, first at byte "
        message += f"{damage['offset']:,}: {damage['example']}"
        lines.append([("  " + short(f"damage: {message}", width - 2), "red")])
    return lines + [[("  " + short(line, width - 2), "")] for line in _outcome(imported)]


def _about(imported: Imported) -> str:
    device = " + ".join(dict.fromkeys(imported.devices)) or _unnamed_devices(imported)
    rank = f"rank {imported.rank}"
    rank += f" of {imported.world_size}" if imported.world_size else ""
    rank += "" if imported.is_rank_known else " (the file contains no rank)"
    steps = plural(len(imported.steps), "step")
    return f"{device} · {rank} · {steps} · {duration(imported.duration_ns)}"


def _unnamed_devices(imported: Imported) -> str:
    if imported.busy_devices:
        return f"{plural(imported.busy_devices, 'device')} (not named in the file)"
    return "no identified device" if imported.unknown_rows else "no device"


def _kernel_lines(kernels: list[TopKernel]) -> list[Line]:
    if not kernels:
        return []
    lines: list[Line] = [
        [(f"  {left('top kernels', _NAME)}{'calls':>8}{'total':>10}  share", "dim")]
    ]
    shown = short_names([kernel.name for kernel in kernels], _NAME - 1)
    for kernel, name in zip(kernels, shown, strict=True):
        share = percent(kernel.share) if kernel.share is not None else ""
        figures = f"{kernel.calls:>8,}{duration(kernel.total_ns):>10}{share:>7}"
        lines.append([(f"  {left(name, _NAME - 1)} {figures}", "")])
    return lines


def _outcome(imported: Imported) -> list[str]:
    notes = []
    if imported.is_empty:
        notes.append("the file contains no events: nothing to store or send")
    if imported.run is not None:
        verb = "replaced in" if imported.is_replaced else "stored in"
        notes.append(f"{verb} {'the new run ' * imported.is_run_new}{PurePath(imported.run).name}")
    if imported.note:
        notes.append(imported.note)
    if imported.sent is not None:
        refused = f", {imported.refused:,} rejected" if imported.refused else ""
        notes.append(f"{imported.sent:,} spans sent{refused}")
    if imported.out is not None:
        notes.append(f"written to {imported.out}")
    if imported.events and not imported.is_unix_time:
        notes.append("times in this file are relative to the start of the machine, not Unix times")
    return notes
