"""What follows from the sections outside steps: rows, histograms, spans?

Epochs, validation, checkpoints, set-up, requests, and code without steps. Each is measured by its
path (the names from below the run span).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.added_up import pay
from otel_mlperf.agent.derivation.gpu_times import note_place
from otel_mlperf.agent.derivation.outside_sections import OutsideSection, OutsideSections
from otel_mlperf.agent.derivation.outside_spans import keep, keep_requests
from otel_mlperf.agent.derivation.section_durations import CallPlace, add_calls
from otel_mlperf.agent.derivation.section_uses import UsePlace, add_use, uses_by_row
from otel_mlperf.agent.model.table_rows import SectionRow

if TYPE_CHECKING:
    from otel_mlperf.agent.derivation.ended_steps import EndedStepFacts
    from otel_mlperf.agent.derivation.mark_task import MarkTask
    from otel_mlperf.agent.model.journal_state import JournalState


def work_out_outside(task: MarkTask, steps: list[EndedStepFacts]) -> None:
    """Works out the rows of no step; ``steps`` have covered what is around them."""
    outside = OutsideSections(task.journal, task.batch.outside)
    sections = outside.sections(steps)
    _measure(task, sections)
    for i, use in uses_by_row(task, task.batch.outside):
        section = sections[i]  # one for each row, in their order
        place = UsePlace(section.name, "/".join(section.path), section.beside, in_step=False)
        add_use(task, place, use)
    whole = keep_requests(task, sections)
    for section in sections:
        if section.on_device:
            note_place(task, section.span, "/".join(section.path), beside=section.beside)
        if section.root not in whole:
            keep(task, section, outside)


def _measure(task: MarkTask, sections: list[OutsideSection]) -> None:
    """Those of one name and path together: a row or histogram costs as much for one as for many."""
    by_path: dict[tuple[int, int, tuple[str, ...], bool], list[OutsideSection]] = {}
    by_name: dict[int, list[OutsideSection]] = {}
    for section in sections:
        if not section.interrupted:
            # After how many first steps it began: set-up is what was before the first of a phase.
            era = sum(first <= section.start for first in task.journal.first_steps)
            key = (era, section.name, section.path, section.beside)
            by_path.setdefault(key, []).append(section)
            by_name.setdefault(section.name, []).append(section)
    for (era, name, *_), same in by_path.items():
        row = _section_row(same, task.journal)
        place = CallPlace(name, row["path"], row["beside"], in_step=False)
        took = np.array([section.duration_ns for section in same], np.int64)
        failed = np.array([section.error for section in same])
        ends = np.array([section.end for section in same], np.int64)
        add_calls(task, place, took, failed, ends)
        task.tables.add_outside(row, era)
        task.self_time(task.labels(name, phase=""), row["self_ns"])
    for name, same in by_name.items():
        labels = task.labels(name, phase="")
        task.meter.record(names.SECTION_DURATION, labels, np.array([s.duration_ns for s in same]))


def _section_row(sections: list[OutsideSection], journal: JournalState) -> dict[str, Any]:
    """The row of table ``sections`` for sections of one name, path and *beside*."""
    meta, first = journal.meta, sections[0]
    _, name, category, phase, _ = journal.section(first.name)
    path, durations = "/".join(first.path), [section.duration_ns for section in sections]
    return SectionRow(
        rank=meta.rank,
        restart=meta.restart,
        phase=phase,
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
    ).as_row()
