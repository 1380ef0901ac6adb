"""Derivation of the rows of one journal since its last mark, and of the outcome of its run.

This module only derives rows and updates the journal's state. Tables (``row_tables``), metric
series (``row_metrics``) and tracker points (``scalars``) are then updated from the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.aggregates import (
    OutsideRow,
    aggregates_outside,
    unreported_aggregates,
)
from otel_mlperf.agent.derivation.gpu_times import derive_gpu_times, note_places
from otel_mlperf.agent.derivation.new_rows import INTERRUPTED_FLAG, NewRows, remember_ended
from otel_mlperf.agent.derivation.outside_sections import (
    OutsideSections,
    sums_by_place,
    uses_outside,
)
from otel_mlperf.agent.derivation.sampled_spans import SpanSelection, sample_steps
from otel_mlperf.agent.derivation.step_rows import (
    DerivedSteps,
    calls_in_steps,
    derive_steps,
    uses_in_steps,
)
from otel_mlperf.journal.layout import Flag, signed
from otel_mlperf.otlp.span_content import MOST_MARKS
from otel_mlperf.tables.run_tables import MarkRow, ValueRow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.agent.derivation.section_calls import SectionCalls, Uses
    from otel_mlperf.agent.model.agent_state import RankState
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.agent.model.kept_span import SampledSpan
    from otel_mlperf.agent.model.sampling import Policy
    from otel_mlperf.journal.ring_scan import Rows
    from otel_mlperf.otlp.span_limits import SpanLimits
    from otel_mlperf.tables.run_tables import GpuStepRow, SectionRow

_MAX_ERRORS: Final = 64


class SpanCounts(NamedTuple):
    """Numbers of span items of one journal at one mark, for the delivery accounts."""

    created: int = 0
    failed: int = 0
    """Number of items lost because their derivation failed."""
    damaged: int = 0
    unselected: int = 0
    rolled_up: int = 0


class DerivedRows(NamedTuple):
    """Rows of one journal at one mark, from which tables, series and points are updated."""

    steps: DerivedSteps
    outside: list[OutsideRow]
    """Rows of sections and aggregates outside steps, each with its era."""
    aggregates: list[SectionRow]
    """Rows of aggregates in steps."""
    calls: list[SectionCalls]
    uses: list[Uses]
    gpu_steps: list[GpuStepRow]
    values: list[ValueRow]
    marks: list[MarkRow]
    spans: list[SampledSpan]
    counts: SpanCounts


def derive_rows(
    journal: JournalState, rank: RankState, policy: Policy, limits: SpanLimits
) -> DerivedRows:
    """Derive all rows that are complete. Rows of open steps wait in the journal's state."""
    batch = NewRows(journal, limits)
    journal.sections += batch.created
    # Must run before the steps are derived: they leave the roots, which contain the step number of
    # an error.
    _follow_errors(batch, journal)
    aggregates = aggregates_outside(journal)
    values, marks = [*_values(batch.values, journal)], [*_marks(batch.marks, journal)]
    _note_marks(rank, marks)
    _note_end(batch, journal)
    steps = derive_steps(batch.steps, batch.payloads, journal)
    steps = steps._replace(ended=sample_steps(steps.ended, policy, rank, journal))
    # Steps must be derived first, because they reduce the self times of their enclosing sections.
    outside = OutsideSections(batch.outside, steps.whole, journal)
    sums = sums_by_place(outside.ended, journal)
    note_places(journal, outside.ended)
    gpu = derive_gpu_times(batch.device_times, journal)
    uses = [
        uses_in_steps(steps, batch.payloads),
        uses_outside(batch.outside, outside.ended, batch.payloads),
        gpu.uses,
    ]
    # Spans must be created last, because creating a span removes the payload of its row.
    selection = SpanSelection(policy, rank, journal, batch)
    selection.add_steps(steps)
    selection.add_outside(outside)
    selection.add_gpu_times(gpu)
    rest = unreported_aggregates(journal) if journal.left else []
    remember_ended(journal)
    return DerivedRows(
        steps=steps,
        outside=[*aggregates, *(row for row, _ in sums)],
        aggregates=[*steps.aggregates, *rest],
        calls=[*calls_in_steps(steps, journal), *(calls for _, calls in sums)],
        uses=uses,
        gpu_steps=gpu.steps,
        values=values,
        marks=marks,
        spans=selection.spans,
        counts=SpanCounts(
            created=batch.created,
            damaged=batch.damaged,
            unselected=selection.unselected,
            rolled_up=selection.rolled_up,
        ),
    )


def _follow_errors(batch: NewRows, state: JournalState) -> None:
    """Pass each error's origin on to the enclosing section, for the report at the run's end."""
    rows = np.concatenate((batch.steps, batch.outside))
    rows = rows[rows["flags"] & Flag.ERROR != 0]
    # Inner before outer: of two sections with the same end, the later start is the inner one.
    for i in np.lexsort((-rows["start"].astype(np.int64), rows["end"])).tolist():
        row = rows[i]
        root = state.roots.get(int(row["root"]))
        number = root.number if root is not None and root.kind == "step" else None
        origin = state.errors.pop(int(row["span"]), [state.section(int(row["name"]))[1], number])
        above = root.parent if root and row["span"] == row["root"] else int(row["parent"])
        state.errors[above] = origin
    for span in list(state.errors)[:-_MAX_ERRORS]:
        del state.errors[span]


def _note_end(batch: NewRows, state: JournalState) -> None:
    rows, span = batch.outside, state.meta.run_span
    for row in () if state.meta.is_child else rows[rows["span"] == span]:
        # Do not remove the payload: the run's span, which is created later, needs it too.
        payload = batch.payloads.get(span, {})
        state.ended_ns = int(max(row["end"], row["start"]))
        error = payload.get("e") or []
        state.outcome = _outcome(int(row["flags"]), error)
        state.error = [str(text) for text in error[:2]]
        # The run's own row has propagated the error from the run's span to the enclosing section.
        root = state.roots.get(span)
        origin = state.errors.get(root.parent if root else int(row["parent"]))
        if state.outcome != "finished" and origin and origin[0] != names.SPAN_RUN:
            state.error_section, state.error_step = origin
        results = payload.get("a") or {}
        state.result = {
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


def _values(rows: Rows, state: JournalState) -> Iterator[ValueRow]:
    numbers = rows["end"].copy().view(np.float64)
    for row, value in zip(rows.tolist(), numbers.tolist(), strict=True):
        yield ValueRow(**_at_step(row, state), value=value)


def _marks(rows: Rows, state: JournalState) -> Iterator[MarkRow]:
    for row in rows.tolist():
        yield MarkRow(**_at_step(row, state))


def _at_step(row: tuple[int, ...], state: JournalState) -> dict[str, Any]:
    meta, (time, _, _, number, _, _, entry, *_) = state.meta, row
    _, name, _, phase, _ = state.section(entry)
    return {
        "rank": meta.rank,
        "restart": meta.restart,
        "phase": phase,
        "name": name,
        "number": signed(number),
        "time_ns": time + meta.shift_ns,
    }


def _note_marks(rank: RankState, marks: list[MarkRow]) -> None:
    room = max(0, MOST_MARKS - len(rank.marks))
    rank.marks += [(mark.time_ns, mark.name, mark.phase, mark.number) for mark in marks[:room]]
    rank.marks_left_out += len(marks[room:])
