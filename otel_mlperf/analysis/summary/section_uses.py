"""Resource use of sections and of the run's processes: CPU time, memory, I/O and GPU time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_shares import shown
from otel_mlperf.analysis.summary.call_durations import merge_spreads
from otel_mlperf.analysis.summary.use_shapes import ProcessUse, SectionUse, UseFigures
from otel_mlperf.tables.run_tables import ResourceRow

if TYPE_CHECKING:
    from otel_mlperf.analysis.run.run_processes import Processes
    from otel_mlperf.store.table_reader import Store

_PLACE = ("name", "category", "phase", "path", "in_step", "beside")


def read_section_uses(store: Store) -> list[SectionUse]:
    """Return the use of each measured section and place; most CPU time first."""
    found: dict[tuple[Any, ...], dict[str, list[ResourceRow]]] = {}
    for row in store.read(ResourceRow):
        of_place = found.setdefault(tuple(getattr(row, name) for name in _PLACE), {})
        of_place.setdefault(row.measure, []).append(row)
    uses = [_use(dict(zip(_PLACE, place, strict=True)), of) for place, of in found.items()]
    return sorted(uses, key=_cpu_ns, reverse=True)


def _cpu_ns(use: SectionUse) -> int:
    cpu = use.figures.get(names.CPU_NS.key)
    return cpu.total if cpu else -1


def _use(place: dict[str, Any], rows: dict[str, list[ResourceRow]]) -> SectionUse:
    figures = {
        measure.key: _figures(rows[measure.key])
        for measure in (*names.MEASURES, names.GPU_NS)
        if measure.key in rows
    }
    calls = max(of.count for of in figures.values()) if figures else 0
    place["name"] = shown(place["name"])
    return SectionUse(**place, calls=calls, figures=figures)


def _figures(rows: list[ResourceRow]) -> UseFigures:
    count, total, spread = merge_spreads([(row.count, row.total, row.spread) for row in rows])
    return UseFigures(
        count=count,
        total=total,
        mean=total / count,
        least=min(row.least for row in rows),
        most=max(row.most for row in rows),
        variance=spread / count,
    )


def read_process_use(store: Store, processes: Processes) -> ProcessUse | None:
    """Return the resource use reported by the training processes; None if none has reported."""
    rows = store.rows(
        "SELECT name, rank, restart, max(value) FROM readings "
        "WHERE name IN ($cpu, $peak) OR (name = $cuda AND contains(labels, $allocated)) "
        "OR (name = $resident AND contains(labels, $worker)) "
        "GROUP BY name, rank, restart",
        cpu=names.RUN_CPU.name,
        peak=names.RUN_MEMORY_PEAK.name,
        cuda=names.CUDA_MEMORY_MOST.name,
        allocated=json.dumps({names.CUDA_MEMORY_STATE: "allocated"})[1:-1],
        resident=names.PROCESS_MEMORY.name,
        worker=json.dumps({names.PROCESS_ROLE: "worker"})[1:-1],
    )
    cpu_s = {(rank, restart): s for name, rank, restart, s in rows if name == names.RUN_CPU.name}
    peaks = [value for name, _, _, value in rows if name == names.RUN_MEMORY_PEAK.name]
    cuda = [value for name, _, _, value in rows if name == names.CUDA_MEMORY_MOST.name]
    workers = [value for name, _, _, value in rows if name == names.PROCESS_MEMORY.name]
    # Only processes that reported: the use of the other ones is not known.
    lives = (
        processes.end_of(process) - process.start_ns
        for process in processes.all
        if (process.rank, process.restart) in cpu_s
    )
    life_s = sum(lives) / 1e9
    if not peaks or not life_s:
        return None
    return ProcessUse(
        cpus=sum(cpu_s.values()) / life_s,
        memory_peak_bytes=int(max(peaks)),
        workers_peak_bytes=int(max(workers)) if workers else None,
        cuda_peak_bytes=int(max(cuda)) if cuda else None,
    )
