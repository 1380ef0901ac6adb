"""What was in a trace file, and what came of it: as figures and as text?"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from otel_mlperf.kineto.counting.totals import KERNEL
from otel_mlperf.report.kernel_names import short_names
from otel_mlperf.report.lines import WIDTH, Line, left, short
from otel_mlperf.report.quantities import duration, percent, plural

if TYPE_CHECKING:
    from otel_mlperf.kineto.convert import Conversion

_MOST_KERNELS = 5
_NAME = 48


class TopKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One of the kernels, copies and memsets that took longest."""

    name: str
    calls: int
    total_ns: int
    share: float | None
    """Of the time in which a device was busy; above 1 where streams run beside each other."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """One trace file."""

    file: str
    digest: str
    rank: int
    is_rank_known: bool
    world_size: int | None
    devices: list[str]
    duration_ns: int
    steps: list[str]
    is_unix_time: bool
    entries: dict[str, int]
    """Of the file, by their ``ph``."""
    events: int
    spans: int
    roll_ups: int
    rolled_up: int
    traces: list[str]
    busy_ns: int | None
    """Sum over the devices; None: no device ran anything."""
    idle_ns: int | None
    kernels: list[TopKernel]
    orphans: dict[str, int]
    damage: list[dict[str, Any]]
    is_empty: bool = False
    run: str | None = None
    is_run_new: bool = False
    is_replaced: bool = False
    """Whether the run had this very trace already."""
    note: str = ""
    """What makes it look as if it were of another run."""
    sent: int | None = None
    refused: int | None = None
    out: str | None = None


def describe(found: Conversion, file: str, **outcome: Any) -> Imported:
    """The figures of a converted trace; ``outcome`` says where it went."""
    trace, numbers = found.trace, found.numbers
    busy = sum(device.busy_ns for device in numbers.devices) if numbers.devices else None
    idle = sum(device.idle_ns for device in numbers.devices) if numbers.devices else None
    return Imported(
        file=file,
        digest=trace.digest,
        rank=found.rank,
        is_rank_known=found.window is not None or trace.rank is not None,
        world_size=trace.world_size,
        devices=[str(one.get("name", "")) for one in trace.devices if one.get("name")],
        duration_ns=numbers.end_ns - numbers.start_ns,
        steps=list(numbers.steps),
        is_unix_time=trace.is_unix_time,
        entries=dict(trace.counts),
        events=found.events,
        spans=found.kept,
        roll_ups=found.roll_ups,
        rolled_up=found.rolled_up,
        traces=[trace.hex() for trace in _used(found)],
        busy_ns=busy,
        idle_ns=idle,
        kernels=_kernels(found, busy),
        orphans=dict(found.links.orphans),
        damage=[damage._asdict() for damage in trace.damage],
        is_empty=found.is_empty,
        **outcome,
    )


def _used(found: Conversion) -> list[bytes]:
    """The traces that something was put into."""
    places = found.spans.places
    used = np.unique(places.trace[~places.hidden])
    return [places.traces[at] for at in used.tolist()]


def _kernels(found: Conversion, busy_ns: int | None) -> list[TopKernel]:
    work = [total for total in found.numbers.totals if total.what == KERNEL]
    by_name: dict[str, tuple[int, int]] = {}
    for total in work:
        calls, spent = by_name.get(total.name, (0, 0))
        by_name[total.name] = calls + total.figures.count, spent + total.figures.total_ns
    longest = sorted(by_name.items(), key=lambda item: (-item[1][1], item[0]))[:_MOST_KERNELS]
    return [
        TopKernel(
            name=name, calls=calls, total_ns=spent, share=spent / busy_ns if busy_ns else None
        )
        for name, (calls, spent) in longest
    ]


def imported_lines(found: Imported, width: int = WIDTH) -> list[Line]:
    """The summary of one file."""
    lines: list[Line] = [[(short(PurePath(found.file).name, width), "bold")]]
    lines.append([(f"  {_about(found)}", "")])
    spans = plural(found.spans, "span")
    spans += f" and {plural(found.roll_ups, 'roll-up')}" if found.roll_ups else ""
    into = plural(len(found.traces), "trace")
    lines.append([(f"  {plural(found.events, 'event')} → {spans} in {into}", "")])
    if found.busy_ns is not None and found.idle_ns is not None:
        whole = max(1, found.busy_ns + found.idle_ns)
        busy, idle = percent(found.busy_ns / whole), percent(found.idle_ns / whole)
        lines.append([(f"  GPU busy {busy} ({duration(found.busy_ns)}), idle {idle}", "")])
    lines += _kernel_lines(found.kernels)
    for kind, count in found.orphans.items():
        lines.append([(f"  {count:,} × {kind.replace('_', ' ')}", "dim")])
    for damage in found.damage:
        words = f"{damage['kind'].replace('_', ' ')} ×{damage['occurrences']:,}, first at byte "
        words += f"{damage['offset']:,}: {damage['example']}"
        lines.append([("  " + short(f"damage: {words}", width - 2), "red")])
    return lines + [[("  " + short(line, width - 2), "")] for line in _outcome(found)]


def _about(found: Imported) -> str:
    device = " + ".join(dict.fromkeys(found.devices)) or "no device"
    rank = f"rank {found.rank}"
    rank += f" of {found.world_size}" if found.world_size else ""
    rank += "" if found.is_rank_known else " (not said in the file)"
    steps = plural(len(found.steps), "step")
    return f"{device} · {rank} · {steps} · {duration(found.duration_ns)}"


def _kernel_lines(kernels: list[TopKernel]) -> list[Line]:
    if not kernels:
        return []
    lines: list[Line] = [
        [(f"  {left('top kernels', _NAME)}{'calls':>8}{'total':>10}  share", "dim")]
    ]
    shown = short_names([kernel.name for kernel in kernels], _NAME - 1)
    for one, name in zip(kernels, shown, strict=True):
        share = percent(one.share) if one.share is not None else ""
        figures = f"{one.calls:>8,}{duration(one.total_ns):>10}{share:>7}"
        lines.append([(f"  {left(name, _NAME - 1)} {figures}", "")])
    return lines


def _outcome(found: Imported) -> list[str]:
    said = []
    if found.is_empty:
        said.append("it holds no events: there is nothing to store or send")
    if found.run is not None:
        what = "replaced in" if found.is_replaced else "stored in"
        said.append(f"{what} {'the new run ' * found.is_run_new}{PurePath(found.run).name}")
    if found.note:
        said.append(found.note)
    if found.sent is not None:
        refused = f", {found.refused:,} refused" if found.refused else ""
        said.append(f"{found.sent:,} spans sent{refused}")
    if found.out is not None:
        said.append(f"written to {found.out}")
    if found.events and not found.is_unix_time:
        said.append("its times count from the start of the machine, not from 1970")
    return said
