"""Rows of aggregated sections, and subtraction of self time from enclosing sections.

In a step, the step's own row reports the sums (payload ``g``). Outside steps, the sums are the
growth of the cells since the last mark. In both cases, the self time of an aggregate is subtracted
from the row of the enclosing section. The rows of a step, or of the run, therefore sum to the
duration of the step or run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.agent.derivation.cell_values import cells_by_entry
from otel_mlperf.journal.layout import Flag
from otel_mlperf.tables.run_tables import SectionRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mlperf.agent.derivation.ended_steps import EndedStepRows
    from otel_mlperf.agent.derivation.new_rows import Payloads
    from otel_mlperf.agent.model.journal_state import JournalState, Root
    from otel_mlperf.journal.meta import JournalMeta

OutsideRow = tuple[SectionRow, int]
"""Row of table ``sections`` outside steps, and its era: rows of one era are summed."""


class Aggregate(NamedTuple):
    """Content of the journal entry that defines an aggregate: name and place of its sections."""

    name: str
    category: str
    enclosing: str
    phase: str
    section: int
    """Entry number of the section from whose self time the aggregate is subtracted; 0 if none."""
    path: str
    """Outside steps: path of the enclosing section, to which its debt belongs."""
    inside: str
    """Path of the aggregated sections between the enclosing section and this aggregate."""
    of_step: bool
    concurrent: bool
    since_ns: int


class _Growth(NamedTuple):
    calls: int
    sum_ns: int
    self_ns: int
    min_ns: int
    max_ns: int


class _Item(NamedTuple):
    """Share of one aggregate in a step, from the step's payload (``g``, see ``journal.layout``)."""

    entry: int
    after_ns: int
    calls: int
    sum_ns: int
    covered_ns: int
    min_ns: int
    max_ns: int


def aggregates_outside(state: JournalState) -> list[OutsideRow]:
    """Return rows, each with its era, of the calls aggregated outside steps since the last mark.

    The self times are added to ``debts_ns``. ``debt_paid`` later subtracts these debts from the
    self times of the enclosing sections.
    """
    derived: list[OutsideRow] = []
    for aggregate, grown in _grown(state, of_step=False):
        row = _row(state.meta, aggregate, grown, _since(state, aggregate))
        derived.append((row, aggregate.since_ns))
        if aggregate.section:
            key = _debt_key(aggregate.path, concurrent=row.beside)
            state.debts_ns[key] = state.debts_ns.get(key, 0) + grown.self_ns
    return derived


def unreported_aggregates(state: JournalState) -> list[SectionRow]:
    """Return rows of calls that were aggregated in steps, but that no step has reported.

    Must be called after the journal has ended. The steps of these calls never ended, or had ended
    before the calls were counted. The rows count in the run's totals. They have no path, and
    therefore do not count as time outside steps.
    """
    return [
        replace(_row(state.meta, aggregate, grown, _since(state, aggregate)), path="")
        for aggregate, grown in _grown(state, of_step=True)
    ]


def debt_paid(state: JournalState, path: str, self_ns: int, *, concurrent: bool) -> int:
    """Return ``self_ns`` of sections at ``path`` minus the path's debt (``debts_ns``), at least 0.

    The debt is reduced by the subtracted time.
    """
    # Aggregated calls end before their enclosing section: its debt is complete at this point.
    key = _debt_key(path, concurrent=concurrent)
    paid = min(state.debts_ns.get(key, 0), self_ns)
    if paid:
        state.debts_ns[key] -= paid
    return self_ns - paid


def _debt_key(path: str, *, concurrent: bool) -> str:
    return f"{path} beside" if concurrent else path


def aggregates_of_steps(
    sections: EndedStepRows, payloads: Payloads, roots: Sequence[Root], state: JournalState
) -> list[SectionRow]:
    """Return rows of the aggregates that steps report; reduce self times of enclosing sections."""
    rows = sections.rows
    if not (rows["flags"] & Flag.HAS_PAYLOAD).any():
        return []
    reported = [
        (i, item)
        for i in np.flatnonzero(rows["span"] == rows["root"]).tolist()
        for item in _items(payloads.get(int(rows["span"][i]), {}))
    ]
    keys = zip(
        sections.step.tolist(), rows["name"].tolist(), sections.concurrent.tolist(), strict=True
    )
    # Any row of a section is sufficient, because the self times of its rows in a step are summed
    # later.
    row_of = {key: i for i, key in enumerate(keys)} if reported else {}
    loading = state.sections_of(names.DATA_LOADING).tolist() if reported else ()
    waits = {number: str(state.section(number)[1]) for number in loading}
    derived = []
    for i, item in reported:
        aggregate = _aggregate_of(state, item.entry)
        if aggregate is None:
            continue
        step, start = int(sections.step[i]), int(rows["start"][i])
        own = max(0, item.sum_ns - item.covered_ns)
        of_row, of_part = (
            row_of.get((step, aggregate.section, concurrent)) for concurrent in (False, True)
        )
        wait = "" if aggregate.concurrent else _wait_around(sections, of_row, of_part, waits)
        if aggregate.concurrent or wait:
            of_row = of_part  # the time of parts of a wait belongs to the wait
        elif of_row is None:
            of_row = i  # the enclosing section outlasted the step: subtract from the step
        if of_row is not None:
            sections.self_ns[of_row] -= own
        _store(state, item.entry, item.calls, item.sum_ns, item.covered_ns)
        grown = _Growth(item.calls, item.sum_ns, own, item.min_ns, item.max_ns)
        row, root = _row(state.meta, aggregate, grown, start + item.after_ns), roots[step]
        row = replace(row, phase=root.phase, n=root.n, number=root.number, path="")
        if wait:
            row = replace(row, parent=wait, path=f"{wait}//{aggregate.name}", beside=True)
        derived.append(row)
    return derived


def _wait_around(
    sections: EndedStepRows, of_row: int | None, of_part: int | None, waits: dict[int, str]
) -> str:
    if of_row is not None:
        return waits.get(int(sections.rows["name"][of_row]), "")
    return "" if of_part is None else waits.get(int(sections.wait[of_part]), "")


def _items(payload: dict[str, Any]) -> Iterator[_Item]:
    for item in payload.get("g") or ():
        if len(item) == len(_Item._fields):
            yield _Item(*item)


def _grown(state: JournalState, *, of_step: bool) -> Iterator[tuple[Aggregate, _Growth]]:
    for number, _, cells in cells_by_entry(state):
        aggregate = _aggregate_of(state, number)
        entered = [cell.words for cell in cells if cell.words[1]]
        if aggregate is None or aggregate.of_step != of_step or not entered:
            continue
        sums = [sum(words[i] for words in entered) for i in (1, 2, 5)]
        stored = state.cells_stored.get(number, [0, 0, 0])
        count, total, covered = (now - then for now, then in zip(sums, stored, strict=True))
        if min(count, total, covered) < 0:
            # The sums have fallen, because a damaged cell was excluded: continue from the remaining
            # cells.
            state.cells_stored[number] = sums
        elif count > 0:
            _store(state, number, count, total, covered)
            # Minimum and maximum are of all calls so far, because cells do not store them since the
            # last row.
            yield aggregate, _Growth(count, total, max(0, total - covered), *_extremes(entered))


def _since(state: JournalState, aggregate: Aggregate) -> int:
    return aggregate.since_ns or state.meta.monotonic_ns


def _aggregate_of(state: JournalState, number: int) -> Aggregate | None:
    entry = state.entries.get(number)
    if not entry or entry[:2] != ["cell", "aggregate"]:
        return None
    return Aggregate(*entry[2:])


def _extremes(cells: list[list[int]]) -> tuple[int, int]:
    minimum = min(min(cell[3], cell[6] or cell[3]) for cell in cells)
    return minimum, max(max(cell[4], cell[7]) for cell in cells)


def _store(state: JournalState, number: int, count: int, sum_ns: int, covered_ns: int) -> None:
    stored = state.cells_stored.setdefault(number, [0, 0, 0])
    stored[:] = stored[0] + count, stored[1] + sum_ns, stored[2] + covered_ns


def _row(meta: JournalMeta, aggregate: Aggregate, grown: _Growth, start_ns: int) -> SectionRow:
    sums = "/".join(filter(None, (aggregate.inside, aggregate.name)))
    return SectionRow(
        rank=meta.rank,
        restart=meta.restart,
        phase=aggregate.phase,
        n=None,
        number=None,
        name=aggregate.name,
        category=aggregate.category,
        parent=aggregate.enclosing,
        path=f"{aggregate.path}//{sums}",
        beside=meta.is_child or aggregate.concurrent,
        aggregate=True,
        count=grown.calls,
        sum_ns=grown.sum_ns,
        self_ns=grown.self_ns,
        min_ns=grown.min_ns,
        max_ns=grown.max_ns,
        start_ns=start_ns + meta.shift_ns,
    )
