"""Derivation from one journal's rows since the last mark, and the outcome of its run."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.added_up import add_outside, add_rest
from otel_mlperf.agent.derivation.gpu_times import take_gpu_times
from otel_mlperf.agent.derivation.new_rows import INTERRUPTED_FLAG, remember_ended
from otel_mlperf.agent.derivation.outside_work import derive_outside
from otel_mlperf.agent.derivation.step_work import derive_steps, spans_of_step
from otel_mlperf.journal.layout import Flag, signed
from otel_mlperf.otlp.span_content import MOST_MARKS
from otel_mlperf.tables.run_tables import MarkRow, ProcessRow, ValueRow

if TYPE_CHECKING:
    from otel_mlperf.agent.derivation.mark_task import MarkOutcome, MarkTask
    from otel_mlperf.agent.model.journal_state import JournalState

_MOST_ERRORS: Final = 64
_GPU_DEVICES: Final = ("/dev/nvidiactl", "/dev/kfd")


def work_out(task: MarkTask) -> MarkOutcome:
    """Derive everything that is possible now; rows of open steps wait in the state."""
    task.journal.sections += task.batch.created
    # Must run before rows are derived: a step that ends leaves the roots, and with it the number at
    # which an error started.
    _follow_errors(task)
    add_outside(task)
    _add_values(task)
    _add_marks(task)
    _note_end(task)
    # Steps first, because they cover part of the sections around them.
    derive_outside(task, derive_steps(task))
    take_gpu_times(task, spans_of_step)
    if task.journal.left:
        add_rest(task)
    remember_ended(task.journal)
    return task.outcome


def _follow_errors(task: MarkTask) -> None:
    """Propagate each error to the enclosing section, so that the run's end knows its origin."""
    journal = task.journal
    rows = np.concatenate((task.batch.steps, task.batch.outside))
    rows = rows[rows["flags"] & Flag.ERROR != 0]
    # Inner before outer: of two with the same end, the one that started later is inside.
    for i in np.lexsort((-rows["start"].astype(np.int64), rows["end"])).tolist():
        row = rows[i]
        root = journal.roots.get(int(row["root"]))
        number = root.number if root is not None and root.kind == "step" else None
        began = journal.errors.pop(int(row["span"]), [task.entry(int(row["name"]))[1], number])
        above = root.parent if root and row["span"] == row["root"] else int(row["parent"])
        journal.errors[above] = began
    for span in list(journal.errors)[:-_MOST_ERRORS]:
        del journal.errors[span]


def _note_end(task: MarkTask) -> None:
    """Store the outcome of the run, once its own row exists, and the origin of its error."""
    journal, rows = task.journal, task.batch.outside
    span = journal.meta.run_span
    for row in () if journal.meta.is_child else rows[rows["span"] == span]:
        # Not removed, because the run's span, which is made later, needs it too.
        payload = task.batch.peek(span)
        journal.ended_ns = int(max(row["end"], row["start"]))
        error = payload.get("e") or []
        journal.outcome = _outcome(int(row["flags"]), error)
        journal.error = [str(word) for word in error[:2]]
        # The run's own row has moved the error from the run span to the section around it.
        root = journal.roots.get(span)
        began = journal.errors.get(root.parent if root else int(row["parent"]))
        if journal.outcome != "finished" and began and began[0] != names.SPAN_RUN:
            journal.error_section, journal.error_step = began
        results = payload.get("a") or {}
        journal.result = {
            key.removeprefix(names.RESULT): value
            for key, value in results.items()
            if key.startswith(names.RESULT)
        }


def _outcome(flags: int, error: list[Any]) -> str:
    if flags & INTERRUPTED_FLAG:
        return "killed"
    if not flags & Flag.ERROR:
        return "finished"
    return "interrupted" if error and error[0] in ("KeyboardInterrupt", "SystemExit") else "failed"


def _add_values(task: MarkTask) -> None:
    meta, values = task.journal.meta, task.batch.values
    numbers = values["end"].copy().view(np.float64)
    for row, value in zip(values.tolist(), numbers.tolist(), strict=True):
        time, _, _, number, _, _, entry = row[:7]
        _, name, _, phase, _ = task.entry(entry)
        logged = ValueRow(
            rank=meta.rank,
            restart=meta.restart,
            phase=phase,
            name=name,
            number=signed(number),
            time_ns=time + task.journal.meta.shift_ns,
            value=value,
        )
        task.tables.add(logged)
        task.outcome.values.append(logged)
        metric = names.LOGGED.get(name)
        labels = {names.ML_PHASE: phase} if phase else {}
        task.meter.set(metric.name if metric else names.user_metric(name), labels, value)


def _add_marks(task: MarkTask) -> None:
    meta = task.journal.meta
    for row in task.batch.marks.tolist():
        time, _, _, number, _, _, entry = row[:7]
        _, name, _, phase, _ = task.entry(entry)
        task.tables.add(
            MarkRow(
                rank=meta.rank,
                restart=meta.restart,
                phase=phase,
                name=name,
                number=signed(number),
                time_ns=time + meta.shift_ns,
            )
        )
        if len(task.rank.marks) < MOST_MARKS:
            task.rank.marks.append((time + meta.shift_ns, name, phase, signed(number)))
        else:
            task.rank.marks_left_out += 1


def process_row(journal: JournalState) -> ProcessRow:
    """Return the row of table ``processes``."""
    meta = journal.meta
    error_type, error_message = [*journal.error, "", ""][:2]
    return ProcessRow(
        rank=meta.rank,
        restart=meta.restart,
        local_rank=meta.local_rank,
        world_size=meta.world_size,
        pid=meta.pid,
        host=meta.host,
        service=meta.service,
        start_ns=meta.unix_ns,
        end_ns=journal.ended_ns + meta.shift_ns if journal.ended_ns else 0,
        outcome=journal.outcome,
        error_type=error_type,
        error_message=error_message,
        error_step=journal.error_step,
        error_section=journal.error_section,
        result=json.dumps(journal.result, default=str, ensure_ascii=False),
        sections=journal.sections,
        overhead_ns=journal.overhead_ns,
        instance_id=journal.instance,
        has_gpu=any(map(os.path.exists, _GPU_DEVICES)),
    )
