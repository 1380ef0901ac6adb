"""Derivation from sections outside steps: rows, histograms, and the sampled ones as spans.

These are epochs, validation, checkpoints, set-up, requests, and code without steps. Each section is
measured by its path (the names from below the run span) and sampled by its name. A request is a
trace of its own. It is sampled with everything inside it, or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.added_up import pay
from otel_mlperf.agent.derivation.gpu_times import note_place
from otel_mlperf.agent.derivation.outside_sections import OutsideSection, OutsideSections
from otel_mlperf.agent.derivation.rollup import within_budget
from otel_mlperf.agent.derivation.section_durations import CallPlace, add_calls
from otel_mlperf.agent.derivation.section_uses import UsePlace, add_use, uses_by_row
from otel_mlperf.agent.model.kept_span import SampledSpan
from otel_mlperf.agent.model.sampling import INTERRUPTED, PART, reason_to_keep
from otel_mlperf.tables.run_tables import SectionRow

if TYPE_CHECKING:
    from otel_mlperf.agent.derivation.ended_steps import EndedStepFacts
    from otel_mlperf.agent.derivation.mark_task import MarkTask
    from otel_mlperf.agent.model.journal_state import JournalState


_ALWAYS: Final = (names.RUN, names.EPOCH, names.PHASE, names.CHECKPOINT)
"""Categories outside steps that are few, and the frame of the rest: sampled while there is room."""


def keep_requests(task: MarkTask, sections: list[OutsideSection]) -> set[int]:
    """Decide on the requests that ended, each with everything inside it; return their roots."""
    own = [section for section in sections if _is_request(task, section)]
    inside: dict[int, list[OutsideSection]] = {request.root: [] for request in own}
    for section in sections if own else ():
        if section.root in inside:
            inside[section.root].append(section)
    for request in own:
        _keep_request(task, request, inside[request.root])
    return set(inside)


def _is_request(task: MarkTask, section: OutsideSection) -> bool:
    """Return whether it is a request with a trace of its own: not in a step or another request."""
    return section.span == section.root and task.entry(section.name)[2] == names.REQUEST


def _keep_request(task: MarkTask, request: OutsideSection, members: list[OutsideSection]) -> None:
    rank, (_, name, category, _, _) = task.rank, task.entry(request.name)
    reason = _reason(task, request, name, category)
    # If many requests were open when their process died, the later ones add little to the first.
    if request.interrupted:
        reason = reason if rank.run_spans < 2 * task.budget else None
        rank.run_spans += len(members)
    if reason is None:
        task.outcome.unselected += len(members)
        return
    spans = [_kept(task, member, reason) for member in members]
    for kept in spans:
        if kept.span == request.span:
            kept.parent = 0
            if request.parent:
                kept.links = [(task.journal.trace_of(task.journal.meta.run_span), request.parent)]
    final = within_budget(spans, task.budget)
    task.outcome.rolled_up += len(spans) - sum(kept.kind == "section" for kept in final)
    task.outcome.kept += final
    if not request.interrupted:
        mark = (request.end + task.journal.meta.shift_ns, spans[0].trace, request.span)
        labels = task.labels(request.name, phase="")
        task.meter.exemplar(names.SECTION_DURATION, labels, request.duration_ns, mark)


def keep(task: MarkTask, section: OutsideSection, outside: OutsideSections) -> None:
    """Decide on a section that is part of the run's trace, or of a foreign trace."""
    journal, rank = task.journal, task.rank
    _, name, category, _, _ = task.entry(section.name)
    reason = _reason(task, section, name, category)
    room = task.budget * (2 if category in _ALWAYS or section.interrupted else 1)
    if reason is None or rank.run_spans >= room:
        task.outcome.unselected += 1
        return
    rank.run_spans += 1
    journal.forced.discard(section.span)
    journal.forced.update(outside.ancestors(section.span, journal.forced))
    task.outcome.kept.append(_kept(task, section, reason))


def _reason(task: MarkTask, section: OutsideSection, name: str, category: str) -> str | None:
    rank = task.rank
    index = rank.seen.get(name, 0)
    rank.seen[name] = index + 1
    reason = reason_to_keep(
        task.policy, rank, f"section {name}", index, section.duration_ns, section.end,
        error=section.error, profiled=section.profiled or category == names.PROFILER,
    )  # fmt: skip
    if section.interrupted:
        return INTERRUPTED
    if category in _ALWAYS:
        return reason or names.RUN
    return reason or (PART if section.span in task.journal.forced else None)


def _kept(task: MarkTask, section: OutsideSection, reason: str) -> SampledSpan:
    kept = _span(task, section, reason)
    if section.span == task.journal.meta.run_span:
        kept.marks, kept.marks_left_out = sorted(task.rank.marks), task.rank.marks_left_out
    return kept


def _span(task: MarkTask, section: OutsideSection, reason: str) -> SampledSpan:
    return SampledSpan(
        journal=task.journal,
        span=section.span,
        parent=section.parent if section.parent != section.span else 0,
        trace=task.journal.trace_of(section.root),
        start=section.start,
        end=section.end,
        name=section.name,
        track=section.track,
        root=section.root,
        reason=reason,
        error=section.error,
        interrupted=section.interrupted,
        payload=task.batch.payload(section.span),
    )


def derive_outside(task: MarkTask, steps: list[EndedStepFacts]) -> None:
    """Derive the rows of no step; ``steps`` have covered what is around them."""
    outside = OutsideSections(task.journal, task.batch.outside)
    sections = outside.sections(steps)
    _measure(task, sections)
    for i, use in uses_by_row(task, task.batch.outside):
        section = sections[i]  # one per row, in the same order
        place = UsePlace(section.name, "/".join(section.path), section.beside, in_step=False)
        add_use(task, place, use)
    whole = keep_requests(task, sections)
    for section in sections:
        if section.on_device:
            note_place(task, section.span, "/".join(section.path), beside=section.beside)
        if section.root not in whole:
            keep(task, section, outside)


def _measure(task: MarkTask, sections: list[OutsideSection]) -> None:
    """Add rows and histograms, grouped by name and path: one value costs as much as many."""
    by_path: dict[tuple[int, int, tuple[str, ...], bool], list[OutsideSection]] = {}
    by_name: dict[int, list[OutsideSection]] = {}
    for section in sections:
        if not section.interrupted:
            # Number of first steps before it: set-up is everything before the first step of a
            # phase.
            era = sum(first <= section.start for first in task.journal.first_steps)
            key = (era, section.name, section.path, section.beside)
            by_path.setdefault(key, []).append(section)
            by_name.setdefault(section.name, []).append(section)
    for (era, name, *_), same in by_path.items():
        row = _section_row(same, task.journal)
        place = CallPlace(name, row.path, row.beside, in_step=False)
        took = np.array([section.duration_ns for section in same], np.int64)
        failed = np.array([section.error for section in same])
        ends = np.array([section.end for section in same], np.int64)
        add_calls(task, place, took, failed, ends)
        task.tables.add_outside(row, era)
        task.self_time(task.labels(name, phase=""), row.self_ns)
    for name, same in by_name.items():
        labels = task.labels(name, phase="")
        task.meter.record(names.SECTION_DURATION, labels, np.array([s.duration_ns for s in same]))


def _section_row(sections: list[OutsideSection], journal: JournalState) -> SectionRow:
    """Return the row of table ``sections`` for sections of one name, path and *beside*."""
    meta, first = journal.meta, sections[0]
    _, name, category, phase, _ = journal.section(first.name)
    path, durations = "/".join(first.path), [section.duration_ns for section in sections]
    return SectionRow(
        rank=meta.rank,
        restart=meta.restart,
        phase=phase,
        n=None,
        number=None,
        name=name,
        category=category,
        parent=first.path[-2] if len(first.path) > 1 else "",
        path=path,
        beside=first.beside,
        count=len(sections),
        sum_ns=sum(durations),
        self_ns=pay(
            journal, path, sum(section.self_ns for section in sections), beside=first.beside
        ),
        min_ns=min(durations),
        max_ns=max(durations),
        start_ns=min(section.start for section in sections) + meta.shift_ns,
    )
