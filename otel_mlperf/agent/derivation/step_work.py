"""Derivation from ended steps: rows, histograms, and the sampled ones as spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.added_up import take_from_steps
from otel_mlperf.agent.derivation.ended_steps import (
    EndedStepFacts,
    EndedStepRows,
    gather,
    sections_by_name,
    step_row,
)
from otel_mlperf.agent.derivation.gpu_times import awaits_device_times
from otel_mlperf.agent.derivation.new_rows import INTERRUPTED_FLAG
from otel_mlperf.agent.derivation.pauses import rows_by_section
from otel_mlperf.agent.derivation.rollup import within_budget
from otel_mlperf.agent.derivation.section_durations import CallPlace, add_calls
from otel_mlperf.agent.derivation.section_uses import UsePlace, add_use, uses_by_row
from otel_mlperf.agent.model.journal_state import KeptStep, RecentStep
from otel_mlperf.agent.model.kept_span import SampledSpan
from otel_mlperf.agent.model.sampling import INTERRUPTED, reason_to_keep
from otel_mlperf.journal.layout import Flag
from otel_mlperf.journal.ring_scan import ROW_TYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.agent.derivation.mark_task import MarkTask
    from otel_mlperf.agent.model.journal_state import JournalState, Root
    from otel_mlperf.journal.ring_scan import Rows

_LIMIT: Final = 1 << 63


def derive_steps(task: MarkTask) -> list[EndedStepFacts]:
    """Derive the rows of ended steps; return the steps that ended by themselves."""
    rows, journal = task.batch.steps, task.journal
    if not len(rows):
        return []
    roots = np.unique(rows["root"])
    known = [journal.roots.get(r) or journal.ended[r].root for r in roots.tolist()]
    tracks = np.array([root.track for root in known], np.uint64)
    loading = journal.sections_of(names.DATA_LOADING)
    ended = gather(rows, roots, tracks, _ends(journal, rows, roots), loading)
    _exclude_inside(task, ended)
    take_from_steps(task, ended, known)
    facts = list(_facts(task, ended, known))
    # In order of their ends: each step is compared with those before it.
    for step in facts:
        _end(task, step)
    _record_durations(task, facts)
    _add_productive(task, ended, facts)
    interrupted = [step.span for step in facts if step.interrupted]
    measured = list(zip(roots.tolist(), known, strict=True))
    stays = ~np.isin(ended.rows["root"], np.array(interrupted, np.uint64))
    _measure(task, ended.only(stays), measured)
    for i, use in uses_by_row(task, ended.rows):
        place = UsePlace(int(ended.rows["name"][i]), "", bool(ended.beside[i]), in_step=True)
        add_use(task, place, use)
    for i, (span, root) in enumerate(measured):
        _keep(task, ended.rows[ended.step == i], root, span)
    return [step for step in facts if not step.interrupted]


def _ends(journal: JournalState, rows: Rows, roots: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return when each step ended; the state has the ends of earlier ones for late rows."""
    own = rows[rows["span"] == rows["root"]]
    ended = dict(
        zip(own["span"].tolist(), np.maximum(own["end"], own["start"]).tolist(), strict=True)
    )
    return np.array(
        [ended.get(root) or journal.ended[root].end for root in roots.tolist()], np.int64
    )


def _exclude_inside(task: MarkTask, ended: EndedStepRows) -> None:
    """Move excluded time from the enclosing section's self time to that of the step.

    The step's total excludes it as a whole, although part of it was spent in a section.
    """
    is_root = ended.rows["span"] == ended.rows["root"]
    told = (ended.rows["flags"] & Flag.HAS_PAYLOAD != 0) & ~is_root
    for i in np.flatnonzero(told).tolist():
        inside = int(task.batch.peek(int(ended.rows["span"][i])).get("x") or 0)
        if inside:
            ended.self_ns[i] -= inside
            ended.self_ns[is_root & (ended.step == ended.step[i])] += inside


def _facts(task: MarkTask, ended: EndedStepRows, known: list[Root]) -> list[EndedStepFacts]:
    own = np.flatnonzero(ended.rows["span"] == ended.rows["root"])
    facts = []
    for i in own[np.argsort(ended.rows["end"][own])].tolist():
        row, span = ended.rows[i], int(ended.rows["span"][i])
        payload = task.batch.peek(span)
        excluded = int(payload.get("x") or 0)
        flags = int(row["flags"])
        facts.append(
            EndedStepFacts(
                span=span,
                root=known[int(ended.step[i])],
                start=int(row["start"]),
                end=int(max(row["end"], row["start"])),
                duration_ns=max(0, int(ended.duration_ns[i]) - excluded),
                self_ns=max(0, int(ended.self_ns[i]) - excluded),
                samples=_whole(payload.get("n")),
                tokens=_whole(payload.get("t")),
                elements=_whole(payload.get("m")),
                flops=_whole(payload.get("f")),
                epoch=_epoch(payload),
                error=bool(flags & Flag.ERROR),
                interrupted=bool(flags & INTERRUPTED_FLAG),
                profiled=bool(flags & Flag.PROFILED),
            )
        )
    return facts


def _end(task: MarkTask, step: EndedStepFacts) -> None:
    """Measure an ended step and decide whether it is sampled."""
    journal, root = task.journal, step.root
    journal.roots.pop(step.span, None)
    # Its duration has no meaning: it is sampled, and neither measured nor counted.
    if step.interrupted:
        journal.ended[step.span] = RecentStep(root, INTERRUPTED, step.end)
        return
    labels = {names.ML_PHASE: root.phase}
    kept = reason_to_keep(
        task.policy, task.rank, root.phase, root.n, step.duration_ns, step.end,
        error=step.error, profiled=step.profiled,
    )  # fmt: skip
    if kept:
        mark = (step.end + task.journal.meta.shift_ns, root.trace, step.span)
        task.meter.exemplar(names.STEP_DURATION, labels, step.duration_ns, mark)
    _count(task, step, labels)
    row = step_row(step, journal, kept)
    task.tables.add(row)
    task.outcome.steps.append(row)
    journal.ended[step.span] = RecentStep(root, kept, step.end)


def _count(task: MarkTask, step: EndedStepFacts, labels: dict[str, str]) -> None:
    meter = task.meter
    meter.add(names.STEPS, labels, 1)
    if step.samples is not None:
        meter.add(names.SAMPLES, labels, step.samples)
    if step.tokens is not None:
        meter.add(names.TOKENS, labels, step.tokens)
    if step.flops is not None:
        meter.add(names.FLOPS, labels, step.flops)
        meter.add(names.FLOPS_TIME, labels, step.duration_ns / 1e9)
    meter.set(names.STEP_NUMBER.name, labels, step.root.number)
    meter.set(names.LAST_STEP_TIME.name, {}, (step.end + task.journal.meta.shift_ns) / 1e9)
    task.self_time(task.labels(step.root.name), step.self_ns)


def _record_durations(task: MarkTask, steps: list[EndedStepFacts]) -> None:
    """Record the steps of a mark together: a histogram costs as much for one value as for many."""
    by_phase: dict[str, list[int]] = {}
    for step in steps:
        if not step.interrupted:
            by_phase.setdefault(step.root.phase, []).append(step.duration_ns)
    for phase, durations in by_phase.items():
        task.meter.record(names.STEP_DURATION, {names.ML_PHASE: phase}, np.array(durations))


def _add_productive(task: MarkTask, ended: EndedStepRows, steps: list[EndedStepFacts]) -> None:
    """Add the productive time: training without its waits for data, and prediction.

    Compilation in either is not productive.
    """
    good = [step for step in steps if not (step.error or step.interrupted)]
    trained = [step.span for step in good if step.root.phase == names.TRAIN]
    others = [step.span for step in good if step.root.phase == names.PREDICT]
    kinds = {number: task.entry(number)[2] for number in np.unique(ended.rows["name"]).tolist()}
    productive = sum(
        step.duration_ns for step in good if step.root.phase in (names.TRAIN, names.PREDICT)
    )
    for category, spans in (
        (names.DATA_LOADING, trained),
        (names.COMPILE, [*trained, *others]),
    ):
        numbers = [number for number, kind in kinds.items() if kind == category]
        is_other = np.isin(ended.rows["name"], np.array(numbers, np.uint64)) & ~ended.beside
        is_other &= np.isin(ended.rows["root"], np.array(spans, np.uint64))
        productive -= int(ended.self_ns[is_other].sum())
    if productive > 0:
        task.meter.add(names.RUN_PRODUCTIVE, {}, productive / 1e9)


def _measure(task: MarkTask, ended: EndedStepRows, steps: list[tuple[int, Root]]) -> None:
    """Add rows, histograms and self times of the sections of steps."""
    for inside, part in rows_by_section(ended, task.journal):
        columns = sections_by_name(part, task.journal, steps, inside)
        task.tables.add_step_sections(columns)
    inner = ended.rows["span"] != ended.rows["root"]
    name, duration = ended.rows["name"][inner], ended.duration_ns[inner]
    own, beside = ended.self_ns[inner], ended.beside[inner]
    ends = ended.rows["end"][inner].astype(np.int64)
    failed = ended.rows["flags"][inner] & Flag.ERROR != 0
    for number in np.unique(name).tolist():
        of_name = name == number
        labels = task.labels(number)
        task.meter.record(names.SECTION_DURATION, labels, duration[of_name])
        for apart in np.unique(beside[of_name]).tolist():
            mine = of_name & (beside == apart)
            place = CallPlace(number, "", apart, in_step=True)
            add_calls(task, place, duration[mine], failed[mine], ends[mine])
        task.self_time(labels, int(own[of_name & ~beside].sum()))


def _keep(task: MarkTask, rows: Rows, root: Root, span: int) -> None:
    reason = task.journal.ended[span].kept
    if reason is None:
        task.outcome.unselected += len(rows)
        return
    told = {row: payload for row in rows["span"].tolist() if (payload := task.batch.payload(row))}
    step = KeptStep(root, reason, rows.tobytes(), told)
    if awaits_device_times(rows, span):
        task.journal.untold[span] = step
    else:
        task.outcome.kept += spans_of_step(task, span, step)


def spans_of_step(task: MarkTask, span: int, step: KeptStep) -> list[SampledSpan]:
    """Return the spans of a sampled step that are sent, within its budget; count the others."""
    root, reason, meta = step.root, step.reason, task.journal.meta
    rows = np.frombuffer(step.rows, ROW_TYPE)
    budget = task.policy.spans_of_step(meta.rank, meta.world_size, root.trace, reason)
    if budget == 1:
        task.outcome.unselected += int((rows["span"] != span).sum())
        rows = rows[rows["span"] == span]
    spans = [_kept(task, row, step) for row in rows]
    for kept in spans:
        if kept.span == span:
            kept.parent = 0
            if root.parent:
                kept.links = [(task.journal.run_trace, root.parent)]
    final = within_budget(spans, budget)
    task.outcome.rolled_up += len(spans) - sum(kept.kind == "section" for kept in final)
    return final


def _kept(task: MarkTask, row: Any, step: KeptStep) -> SampledSpan:
    flags, span, root = int(row["flags"]), int(row["span"]), step.root
    payload = step.payloads.get(span, {})
    return SampledSpan(
        journal=task.journal,
        span=span,
        parent=int(row["parent"]),
        trace=root.trace,
        start=int(row["start"]),
        end=int(max(row["end"], row["start"])),
        name=int(row["name"]),
        track=int(row["track"]),
        root=int(row["root"]),
        reason=step.reason,
        error=bool(flags & Flag.ERROR),
        interrupted=bool(flags & INTERRUPTED_FLAG),
        payload=payload,
        n=root.n,
        number=root.number,
        epoch=_epoch(payload),
    )


def _epoch(payload: dict[str, Any]) -> int | None:
    return _whole((payload.get("a") or {}).get(names.TRAINING_EPOCH))


def _whole(value: object) -> int | None:
    """Return a number that the tables can store.

    None for anything else, so that no value stops all.
    """
    if isinstance(value, int) and not isinstance(value, bool) and -_LIMIT <= value < _LIMIT:
        return value
    return None
