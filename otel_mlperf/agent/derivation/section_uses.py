"""Resource use of measured sections, summed over all of their calls.

Each call reports its use in its payload. Every call counts here, whether sampled as a span or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.journal.layout import Flag
from otel_mlperf.tables.run_tables import PlaceRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.agent.derivation.mark_task import MarkTask
    from otel_mlperf.journal.ring_scan import Rows

_KEYS = [measure.key for measure in names.MEASURES]


class UsePlace(NamedTuple):
    """Place of a section: calls of one name and place add up."""

    name: int
    """Its entry in the journal."""
    path: str
    """Names from below the run, outside steps."""
    beside: bool
    in_step: bool


def uses_by_row(task: MarkTask, rows: Rows) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield the index of each measured row, and its known figures by their keys."""
    for i in np.flatnonzero(rows["flags"] & Flag.MEASURED).tolist():
        figures = task.batch.peek(int(rows["span"][i])).get("u") or []
        if len(figures) == len(_KEYS):
            told = zip(_KEYS, figures, strict=True)
            yield i, {key: figure for key, figure in told if figure is not None}


def add_use(task: MarkTask, place: UsePlace, use: dict[str, int]) -> None:
    """Add one call to the tables and to the series of its section."""
    meta = task.journal.meta
    _, name, category, phase, _ = task.entry(place.name)
    row = PlaceRow(
        rank=meta.rank,
        restart=meta.restart,
        phase=phase,
        name=name,
        category=category,
        path=place.path,
        beside=place.beside,
        in_step=place.in_step,
    )
    task.tables.uses.add(row, use)
    _measure(task, task.labels(place.name, phase=None if place.in_step else ""), use)


def _measure(task: MarkTask, labels: dict[str, str], use: dict[str, int]) -> None:
    meter = task.meter
    for measure, metric, more in _TOTALS:
        if value := use.get(measure.key):
            meter.add(metric, labels | more, value / 1e9 if measure.key.endswith("_ns") else value)
    for measure, metric in _PEAKS:
        if measure.key in use:
            meter.raise_to(metric, labels, use[measure.key])


_TOTALS: list[tuple[names.Measure, names.Metric, dict[str, Any]]] = [
    (names.CPU_NS, names.SECTION_CPU, {}),
    (names.GPU_NS, names.SECTION_GPU, {}),
    (names.SWITCHES, names.SECTION_SWITCHES, {names.CONTEXT_SWITCH: "voluntary"}),
    (names.INVOLUNTARY_SWITCHES, names.SECTION_SWITCHES, {names.CONTEXT_SWITCH: "involuntary"}),
    (names.READ_BYTES, names.SECTION_IO, {names.DISK_DIRECTION: "read"}),
    (names.WRITTEN_BYTES, names.SECTION_IO, {names.DISK_DIRECTION: "write"}),
    (names.MEMORY_GROWTH, names.SECTION_MEMORY_GROWTH, {}),
    (names.CUDA_GROWTH, names.SECTION_CUDA_GROWTH, {}),
]
_PEAKS = [
    (names.MEMORY_PEAK, names.SECTION_MEMORY_PEAK),
    (names.CUDA_PEAK, names.SECTION_CUDA_PEAK),
]
