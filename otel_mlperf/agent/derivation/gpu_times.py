"""How long was the GPU in each section, and what follows for the steps?

A section's stamps are told some time after its row, so what is worked out of rows does not wait for
it: only the spans of kept steps do, for so many marks at most, to be sent with their GPU time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.gpu_pace import WORK, narrowed, step_on_device
from otel_mlperf.agent.derivation.section_uses import UsePlace, add_use
from otel_mlperf.journal.layout import Flag
from otel_mlperf.journal.ring_scan import ROW_TYPE

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.agent.derivation.gpu_pace import StepOnDevice
    from otel_mlperf.agent.derivation.mark_task import MarkTask
    from otel_mlperf.agent.model.journal_state import JournalState, KeptStep, Root
    from otel_mlperf.agent.model.kept_span import Kept
    from otel_mlperf.journal.device_times import DeviceTimes
    from otel_mlperf.journal.ring_scan import Rows

_PATIENCE: Final = 20
"""Marks for which the spans of a step wait for their GPU time."""
_REMEMBERED: Final = 4096


def will_be_told(rows: Rows, span: int) -> bool:
    """Whether the rows hold that of the step itself, and the GPU time of it is still to come."""
    own = rows["span"] == span
    return bool((rows["flags"][own] & Flag.ON_DEVICE).any())


def note_place(task: MarkTask, span: int, path: str, *, beside: bool) -> None:
    """Remembers where a section outside steps was of which more is to be told."""
    places = task.journal.device_places
    places[span] = (path, beside)
    while len(places) > _REMEMBERED:
        del places[next(iter(places))]


def take_gpu_times(
    task: MarkTask, spans_of: Callable[[MarkTask, int, KeptStep], list[Kept]]
) -> None:
    """Adds up what is told, and lets go of the spans that have waited for it.

    Args:
        task: the work of this mark.
        spans_of: makes the spans of a kept step, given its id.
    """
    journal = task.journal
    told: set[int] = set()
    found: dict[int, dict[str, Any]] = {}
    for times in task.batch.device_times:
        if not times.sections:
            continue
        journal.device_clocks[times.device] = narrowed(
            journal.device_clocks.get(times.device), times
        )
        _add_sections(task, times, found)
        if times.is_step:
            told.add(times.root)
            _add_step(task, times, found)
    for span, step in [*journal.untold.items()]:
        step.figures.update({i: found[i] for i in found.keys() & _spans(step)})
        step.marks += 1
        if span in told or journal.left or step.marks > _PATIENCE:
            del journal.untold[span]
            made = spans_of(task, span, step)
            for one in made:
                one.gpu = step.figures.get(one.span, {})
            task.outcome.kept += made
    for kept in task.outcome.kept:  # outside steps: what was told at once
        kept.gpu = kept.gpu or found.get(kept.span, {})


def _spans(waiting: KeptStep) -> set[int]:
    return set(np.frombuffer(waiting.rows, ROW_TYPE)["span"].tolist())


def _add_sections(task: MarkTask, times: DeviceTimes, found: dict[int, dict[str, Any]]) -> None:
    """Every call counts, whatever is kept as spans."""
    step = _step_of(task.journal, times.root)
    for section in times.sections:
        if section.span == times.root and times.is_mixed:
            continue
        ns = max(0, section.end - section.begin)
        found[section.span] = {names.GPU_NS.attribute: ns}
        path, beside = "", False
        if step is None:
            name = task.entry(section.entry)[1]
            path, beside = task.journal.device_places.pop(section.span, (name, False))
        place = UsePlace(section.entry, path, beside, in_step=step is not None)
        add_use(task, place, {names.GPU_NS.key: ns})


def _step_of(journal: JournalState, root: int) -> Root | None:
    ended = journal.ended.get(root)
    known = ended.root if ended is not None else journal.roots.get(root)
    return known if known is not None and known.kind == "step" else None


def _add_step(task: MarkTask, times: DeviceTimes, found: dict[int, dict[str, Any]]) -> None:
    """The step's row and series; not of one that was partly no time of the step."""
    root = _step_of(task.journal, times.root)
    if root is None or times.is_mixed:
        return
    low, high, _ = task.journal.device_clocks[times.device]
    entries = {section.entry for section in times.sections}
    working = [entry for entry in entries if task.entry(entry)[2] in WORK]
    step = step_on_device(times, working, low, high)
    meta = task.journal.meta
    task.tables.add("gpu_steps", {
        "rank": meta.rank,
        "restart": meta.restart,
        "phase": root.phase,
        "n": root.n,
        "number": root.number,
        "device": times.device,
        "gpu_ns": step.gpu_ns,
        "idle_ns": step.idle_ns,
        "host_paced_ns": step.pace.host_ns,
        "device_paced_ns": step.pace.device_ns,
    })  # fmt: skip
    _measure(task, root, step)
    own = found[times.root]
    if step.idle_ns is not None:
        own[names.GPU_IDLE] = step.idle_ns
    if step.pace.by:
        own[names.PACED_BY] = step.pace.by


def _measure(task: MarkTask, root: Root, step: StepOnDevice) -> None:
    phase = {names.ML_PHASE: root.phase}
    for by, ns in zip(("host", "device", "unknown"), step.pace, strict=True):
        if ns:
            task.meter.add(names.STEP_GPU, phase | {names.PACED_BY: by}, ns / 1e9)
    if step.idle_ns:
        task.meter.add(names.STEP_GPU_IDLE, phase, step.idle_ns / 1e9)
