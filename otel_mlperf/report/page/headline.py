"""Headline and number tiles of a run's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.analysis.run.run_processes import RUNNING
from otel_mlperf.analysis.steps.step_shares import UNTRACKED
from otel_mlperf.quantities import (
    column_unit,
    duration,
    figures,
    percent,
    plural,
    rate,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.analysis.page.page_contents import RunPage
    from otel_mlperf.analysis.summary.summary_shapes import Summary


class Tile(NamedTuple):
    """A tile: one number with its label."""

    label: str
    value: str
    note: str = ""


def headline(page: RunPage) -> str:
    """Return the mean step time and the section with most of it.

    For a run without steps, it is the busy time of devices, or else the outcome.
    """
    summary = page.summary
    devices = page.kernels.total if page.kernels else None
    if summary.steps is None and devices is not None and devices.window_ns:
        least = "" if page.kernels and page.kernels.has_device_times else "at least "
        busy = percent(devices.busy_ns / devices.window_ns)
        return f"Devices were busy for {least}{busy} of what a profiler recorded."
    if summary.steps is None:
        word = "for" if summary.outcome == RUNNING else "after"
        return f"{summary.outcome.capitalize()} {word} {duration(summary.duration_ns)}."
    inside = [row for row in summary.steps.rows if not row.beside and row.name != UNTRACKED]
    said = f"A step takes {duration(summary.steps.mean_ns)}"
    if inside:
        most = max(inside, key=lambda row: row.mean_ns)
        said += f"; {percent(most.share)} of it is {most.name}"
    return f"{said}."


def tiles(page: RunPage) -> list[Tile]:
    """Return the tiles of known numbers."""
    return [*_step_tiles(page.summary), *_run_tiles(page.summary), *_machine_tiles(page.summary)]


def _step_tiles(summary: Summary) -> Iterable[Tile]:
    steps = summary.steps
    if steps is None:
        return
    unit = column_unit(steps.mean_ns)
    note = f"p50 {unit.number(steps.p50_ns)} · p95 {unit.number(steps.p95_ns)}"
    yield Tile("mean step", f"{unit.number(steps.mean_ns)} {unit.name}", note)
    for value, word in ((steps.tokens_per_s, "tokens"), (steps.samples_per_s, "samples")):
        if value is not None:
            yield Tile(f"{word} a second", rate(value), "over all ranks" * (summary.ranks > 1))
    ranks = plural(summary.ranks, "rank")
    yield Tile("steps", f"{steps.count:,}", f"{ranks}, {plural(summary.nodes, 'node')}")


def _run_tiles(summary: Summary) -> Iterable[Tile]:
    yield Tile("run", duration(summary.duration_ns), summary.outcome)
    if summary.ledger is not None and summary.ledger.goodput:
        yield Tile("goodput", percent(summary.ledger.goodput), "of the run's time")
    if summary.work is not None and summary.work.mfu is not None:
        yield Tile("MFU", percent(summary.work.mfu), summary.work.peak_type or "")


def _machine_tiles(summary: Summary) -> Iterable[Tile]:
    machine, process = summary.machine, summary.process
    busy = [gpu.busy_share for gpu in machine.gpus if gpu.busy_share is not None] if machine else []
    if busy:
        yield Tile("devices busy", percent(sum(busy) / len(busy)), plural(len(busy), "device"))
    if process is None:
        return
    if process.cuda_peak_bytes is not None:
        yield Tile("peak device memory", size(process.cuda_peak_bytes, 1024), "PyTorch")
    yield Tile("peak memory", size(process.memory_peak_bytes, 1024), "of one process")
    yield Tile("processors", figures(process.cpus), "used by a process")
