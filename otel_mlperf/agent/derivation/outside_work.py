"""What follows from the sections outside steps: rows, histograms, spans, and how the run ended?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.outside_sections import (
    OutsideSection,
    OutsideSections,
    outside_row,
)
from otel_mlperf.agent.model.kept_span import Kept
from otel_mlperf.agent.model.sampling import INTERRUPTED, PART, reason_to_keep

if TYPE_CHECKING:
    from otel_mlperf.agent.derivation.ended_steps import EndedStepFacts
    from otel_mlperf.agent.derivation.mark_work import Task

_ALWAYS: Final = (names.RUN, names.EPOCH, names.PHASE, names.CHECKPOINT)
"""Categories outside steps that are few, and the frame of the rest: kept while there is room."""


def work_out_outside(task: Task, steps: list[EndedStepFacts]) -> None:
    """Works out the rows of no step; ``steps`` have covered what is around them."""
    outside = OutsideSections(task.journal, task.batch.outside)
    sections = outside.sections(steps)
    _measure(task, sections)
    for section in sections:
        if section.span == task.journal.meta.run_span and not task.journal.meta.is_child:
            _end_run(task, section)
        _keep(task, section, outside)


def _measure(task: Task, sections: list[OutsideSection]) -> None:
    """Those of one name and path together: a row or histogram costs as much for one as for many."""
    by_path: dict[tuple[int, tuple[str, ...], bool], list[OutsideSection]] = {}
    by_name: dict[int, list[OutsideSection]] = {}
    for section in sections:
        if not section.interrupted:
            by_path.setdefault((section.name, section.path, section.beside), []).append(section)
            by_name.setdefault(section.name, []).append(section)
    for same in by_path.values():
        task.tables.add_outside(outside_row(same, task.journal))
    for name, same in by_name.items():
        labels = task.labels(name, phase="")
        durations = np.array([section.end - section.start for section in same])
        task.meter.record(names.SECTION_DURATION, labels, durations)
        task.self_time(labels, sum(section.self_ns for section in same))


def _end_run(task: Task, section: OutsideSection) -> None:
    journal = task.journal
    payload = task.batch.peek(section.span)
    journal.ended_ns = section.end
    error = payload.get("e") or []
    journal.outcome = _outcome(section, error)
    journal.error = [str(word) for word in error[:2]]
    # The run's own row has moved the error from the run span to what is around it.
    root = journal.roots.get(section.span)
    began = journal.errors.get(root.parent if root else section.parent)
    if journal.outcome != "finished" and began and began[0] != names.SPAN_RUN:
        journal.error_section, journal.error_step = began
    results = payload.get("a") or {}
    journal.result = {
        key.removeprefix(names.RESULT): value
        for key, value in results.items()
        if key.startswith(names.RESULT)
    }


def _outcome(section: OutsideSection, error: list[Any]) -> str:
    if section.interrupted:
        return "killed"
    if not section.error:
        return "finished"
    return "interrupted" if error and error[0] in ("KeyboardInterrupt", "SystemExit") else "failed"


def _keep(task: Task, section: OutsideSection, outside: OutsideSections) -> None:
    journal, rank = task.journal, task.rank
    _, name, category, _, _ = task.entry(section.name)
    reason = _reason(task, section, name, category)
    room = task.budget * (2 if category in _ALWAYS or section.interrupted else 1)
    payload = task.batch.payload(section.span)
    if reason is None or rank.run_spans >= room:
        task.outcome.unselected += 1
        return
    rank.run_spans += 1
    journal.forced.discard(section.span)
    journal.forced.update(outside.ancestors(section.span, journal.forced))
    task.outcome.kept.append(_kept(task, section, payload, reason))


def _reason(task: Task, section: OutsideSection, name: str, category: str) -> str | None:
    rank = task.rank
    index = rank.seen.get(name, 0)
    rank.seen[name] = index + 1
    duration = section.end - section.start
    reason = reason_to_keep(
        task.policy, rank, f"section {name}", index, duration, section.end,
        error=section.error, profiled=category == names.PROFILER,
    )  # fmt: skip
    if section.interrupted:
        return INTERRUPTED
    if category in _ALWAYS:
        return reason or names.RUN
    return reason or (PART if section.span in task.journal.forced else None)


def _kept(task: Task, section: OutsideSection, payload: dict[str, Any], reason: str) -> Kept:
    return Kept(
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
        payload=payload,
    )
