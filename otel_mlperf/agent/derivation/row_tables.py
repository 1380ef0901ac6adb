"""Update of the run folder's tables from derived rows."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import asdict, replace

from otel_mlperf import names
from otel_mlperf.journal.layout import Flag
from otel_mlperf.tables.run_tables import DurationPlaceRow, PlaceRow, ProcessRow, StepRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from otel_mlperf.agent.derivation.ended_steps import EndedStepRows
    from otel_mlperf.agent.derivation.journal_rows import DerivedRows
    from otel_mlperf.agent.derivation.section_calls import SectionCalls, SectionPlace, Uses
    from otel_mlperf.agent.derivation.step_rows import DerivedSteps, EndedStep
    from otel_mlperf.agent.model.journal_state import JournalState, Root
    from otel_mlperf.agent.model.table_rows import Columns, TableRows
    from otel_mlperf.journal.meta import JournalMeta

_GPU_DEVICES: Final = ("/dev/nvidiactl", "/dev/kfd")
_MINUTE_NS: Final = 60 * 10**9


def store_rows(rows: DerivedRows, journal: JournalState, tables: TableRows) -> None:
    """Add the derived rows of one journal to the tables."""
    for step in rows.steps.whole:
        tables.add(_step_row(step, journal.meta))
    for columns in _step_sections(rows.steps, journal):
        tables.add_step_sections(columns)
    for outside, era in rows.outside:
        tables.add_outside(outside, era)
    for calls in rows.calls:
        _store_calls(calls, journal, tables)
    for uses in rows.uses:
        _store_uses(uses, journal, tables)
    for row in (*rows.aggregates, *rows.gpu_steps, *rows.values, *rows.marks):
        tables.add(row)


def _step_row(step: EndedStep, meta: JournalMeta) -> StepRow:
    root = step.root
    return StepRow(
        rank=meta.rank,
        restart=meta.restart,
        phase=root.phase,
        n=root.n,
        number=root.number,
        epoch=step.epoch,
        start_ns=step.start + meta.shift_ns,
        end_ns=step.end + meta.shift_ns,
        duration_ns=step.duration_ns,
        self_ns=step.self_ns,
        samples=step.samples,
        tokens=step.tokens,
        elements=step.elements,
        flops=step.flops,
        error=step.error,
        kept=step.kept,
        trace_id=root.trace.hex(),
    )


def _step_sections(steps: DerivedSteps, journal: JournalState) -> Iterator[Columns]:
    sections = steps.sections
    inner = sections.rows["span"] != sections.rows["root"]
    interrupted = [step.span for step in steps.ended if step.interrupted]
    if interrupted:
        inner &= ~np.isin(sections.rows["root"], np.array(interrupted, np.uint64))
    inside = _enclosing_names(sections)
    for number in np.unique(inside[inner]).tolist():
        name = "" if number < 0 else str(journal.section(number)[1])
        part = sections.only(inner & (inside == number))
        yield _section_columns(part, steps.roots, journal, name)


def _enclosing_names(sections: EndedStepRows) -> NDArray[np.int64]:
    rows = sections.rows
    is_pause = rows["flags"] & Flag.PAUSE != 0
    if not is_pause.any():
        return sections.wait
    names_of = dict(zip(rows["span"].tolist(), rows["name"].tolist(), strict=True))
    around = np.array([names_of.get(span, -1) for span in rows["parent"].tolist()], np.int64)
    return np.where(is_pause, around, sections.wait)


def _section_columns(
    sections: EndedStepRows, roots: Sequence[Root], journal: JournalState, inside: str
) -> Columns:
    rows, concurrent = sections.rows, sections.concurrent
    # Step, name and concurrency in one number: equal keys are contiguous and summed in one call.
    key = (sections.step << 33) | (rows["name"].astype(np.int64) << 1) | concurrent
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    duration, own = sections.duration_ns[order], sections.self_ns[order]
    start = rows["start"].astype(np.int64)[order]
    of_group = order[first]
    owner = [roots[i] for i in sections.step[of_group].tolist()]
    entries = [journal.section(n) for n in rows["name"][of_group].tolist()]
    is_part = (sections.wait[of_group] >= 0).tolist()
    meta, size = journal.meta, len(first)
    return {
        "rank": [meta.rank] * size,
        "restart": [meta.restart] * size,
        "phase": [root.phase for root in owner],
        "n": [root.n for root in owner],
        "number": [root.number for root in owner],
        "name": [entry[1] for entry in entries],
        "category": [entry[2] for entry in entries],
        "parent": [inside] * size,
        "path": [
            f"{inside}/{entry[1]}" if part else ""
            for entry, part in zip(entries, is_part, strict=True)
        ],
        "beside": concurrent[of_group].tolist(),
        "aggregate": [False] * size,
        "count": np.diff(first, append=len(order)).tolist(),
        "sum_ns": np.add.reduceat(duration, first).tolist(),
        "self_ns": np.add.reduceat(own, first).tolist(),
        "min_ns": np.minimum.reduceat(duration, first).tolist(),
        "max_ns": np.maximum.reduceat(duration, first).tolist(),
        "start_ns": (np.minimum.reduceat(start, first) + meta.shift_ns).tolist(),
    }


def _store_calls(calls: SectionCalls, journal: JournalState, tables: TableRows) -> None:
    row = DurationPlaceRow(**asdict(_place_row(calls.place, journal)), bound_s=calls.bound_s)
    if not calls.place.in_step:
        row = replace(row, phase="")
    minutes: dict[int | None, Any] = {None: ...}
    if row.category == names.REQUEST:
        minutes = _by_minute(calls.ends + journal.meta.shift_ns)
    for minute_ns, mine in minutes.items():
        tables.durations.add(
            replace(row, minute_ns=minute_ns),
            calls.durations_ns[mine],
            int(calls.failed[mine].sum()),
            int(calls.within[mine].sum()),
        )


def _store_uses(uses: Uses, journal: JournalState, tables: TableRows) -> None:
    for place, of_place in uses.items():
        row = _place_row(place, journal)
        for use in of_place:
            tables.uses.add(row, use)


def _place_row(place: SectionPlace, journal: JournalState) -> PlaceRow:
    meta, (_, name, category, phase, _) = journal.meta, journal.section(place.name)
    return PlaceRow(
        rank=meta.rank,
        restart=meta.restart,
        phase=phase,
        name=name,
        category=category,
        path=place.path,
        beside=place.concurrent,
        in_step=place.in_step,
    )


def _by_minute(ends_ns: NDArray[np.int64]) -> dict[int | None, Any]:
    starts = ends_ns - ends_ns % _MINUTE_NS
    return {minute: starts == minute for minute in np.unique(starts).tolist()}


def process_row(journal: JournalState) -> ProcessRow:
    """Return the row of table ``processes`` for the journal's process."""
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
