"""Derivation of ended steps: their section rows, durations, counts and flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.derivation.aggregates import aggregates_of_steps
from otel_mlperf.agent.derivation.ended_steps import EndedStepRows, gather
from otel_mlperf.agent.derivation.new_rows import INTERRUPTED_FLAG
from otel_mlperf.agent.derivation.section_calls import (
    SectionCalls,
    SectionPlace,
    Uses,
    calls_at,
    uses_by_row,
)
from otel_mlperf.journal.layout import Flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_mlperf.agent.derivation.new_rows import Payloads
    from otel_mlperf.agent.model.journal_state import JournalState, Root
    from otel_mlperf.journal.ring_scan import Rows
    from otel_mlperf.tables.run_tables import SectionRow

_LIMIT: Final = 1 << 63


class EndedStep(NamedTuple):
    """One ended step. Counts that the user's program did not report are None."""

    span: int
    root: Root
    start: int
    end: int
    duration_ns: int
    """Duration without validation phases and checkpoints inside the step."""
    self_ns: int
    samples: int | None
    tokens: int | None
    elements: int | None
    flops: int | None
    epoch: int | None
    error: bool
    interrupted: bool
    profiled: bool
    kept: str | None = None
    """Reason for which the step is sampled. None if it is not sampled, or if this is not decided
    yet."""


class DerivedSteps(NamedTuple):
    """Steps that ended since the last mark, and new section rows of these and of earlier steps."""

    ids: list[int]
    """Ids of the steps to which the rows belong, ascending."""
    roots: list[Root]
    """Roots of the steps, in the order of ``ids``."""
    sections: EndedStepRows
    ended: list[EndedStep]
    """Steps whose own row was read, in the order of their ends."""
    aggregates: list[SectionRow]

    @property
    def whole(self) -> list[EndedStep]:
        """Return the steps that were not interrupted; other steps have no meaningful duration."""
        return [step for step in self.ended if not step.interrupted]


def derive_steps(rows: Rows, payloads: Payloads, state: JournalState) -> DerivedSteps:
    """Derive ended steps from section rows.

    Args:
        rows: section rows of steps that have ended, now or earlier.
        payloads: payloads by the span id of the row.
        state: known steps and names. The sums of aggregates in the state are updated.
    """
    ids = np.unique(rows["root"])
    roots = [state.roots.get(span) or state.ended[span].root for span in ids.tolist()]
    tracks = np.array([root.track for root in roots], np.uint64)
    loading = state.sections_of(names.DATA_LOADING)
    sections = gather(rows, ids, tracks, _ends(rows, ids, state), loading)
    _exclude_inside(sections, payloads)
    aggregates = aggregates_of_steps(sections, payloads, roots, state)
    ended = _ended(sections, payloads, roots)
    return DerivedSteps(ids.tolist(), roots, sections, ended, aggregates)


def _ends(rows: Rows, ids: NDArray[np.uint64], state: JournalState) -> NDArray[np.int64]:
    own = rows[rows["span"] == rows["root"]]
    ended = dict(
        zip(own["span"].tolist(), np.maximum(own["end"], own["start"]).tolist(), strict=True)
    )
    return np.array([ended.get(span) or state.ended[span].end for span in ids.tolist()], np.int64)


def _exclude_inside(sections: EndedStepRows, payloads: Payloads) -> None:
    """Move excluded time (payload ``x``) from a section's self time to the step's self time.

    ``_ended`` then subtracts the total excluded time from the step's duration and self time.
    """
    rows, own = sections.rows, sections.self_ns
    is_root = rows["span"] == rows["root"]
    reports = (rows["flags"] & Flag.HAS_PAYLOAD != 0) & ~is_root
    for i in np.flatnonzero(reports).tolist():
        inside = int(payloads.get(int(rows["span"][i]), {}).get("x") or 0)
        if inside:
            own[i] -= inside
            own[is_root & (sections.step == sections.step[i])] += inside


def _ended(sections: EndedStepRows, payloads: Payloads, roots: Sequence[Root]) -> list[EndedStep]:
    rows = sections.rows
    own = np.flatnonzero(rows["span"] == rows["root"])
    ended = []
    for i in own[np.argsort(rows["end"][own])].tolist():
        row, span = rows[i], int(rows["span"][i])
        payload, flags = payloads.get(span, {}), int(row["flags"])
        excluded = int(payload.get("x") or 0)
        ended.append(
            EndedStep(
                span=span,
                root=roots[int(sections.step[i])],
                start=int(row["start"]),
                end=int(max(row["end"], row["start"])),
                duration_ns=max(0, int(sections.duration_ns[i]) - excluded),
                self_ns=max(0, int(sections.self_ns[i]) - excluded),
                samples=_whole(payload.get("n")),
                tokens=_whole(payload.get("t")),
                elements=_whole(payload.get("m")),
                flops=_whole(payload.get("f")),
                epoch=epoch_of(payload),
                error=bool(flags & Flag.ERROR),
                interrupted=bool(flags & INTERRUPTED_FLAG),
                profiled=bool(flags & Flag.PROFILED),
            )
        )
    return ended


def calls_in_steps(steps: DerivedSteps, state: JournalState) -> list[SectionCalls]:
    """Return section calls by place, without those in interrupted steps."""
    sections = steps.sections
    counted = sections.rows["span"] != sections.rows["root"]
    interrupted = [step.span for step in steps.ended if step.interrupted]
    if interrupted:
        counted &= ~np.isin(sections.rows["root"], np.array(interrupted, np.uint64))
    at = np.flatnonzero(counted)
    # Name and concurrency in one number: calls of one place are then a sequence of equal keys.
    key = (sections.rows["name"][at].astype(np.int64) << 1) | sections.concurrent[at]
    order = np.argsort(key, kind="stable")
    at, key = at[order], key[order]
    first = np.flatnonzero(np.diff(key, prepend=-1)).tolist()
    durations, own, rows = sections.duration_ns[at], sections.self_ns[at], sections.rows[at]
    failed, ends = rows["flags"] & Flag.ERROR != 0, rows["end"].astype(np.int64)
    calls = []
    for start, end in zip(first, [*first[1:], len(at)], strict=True) if first else ():
        number, concurrent = divmod(int(key[start]), 2)
        place, mine = SectionPlace(number, "", bool(concurrent), in_step=True), slice(start, end)
        self_ns = int(own[mine].sum())
        calls.append(calls_at(place, durations[mine], failed[mine], ends[mine], self_ns, state))
    return calls


def uses_in_steps(steps: DerivedSteps, payloads: Payloads) -> Uses:
    """Return the resource use of measured sections in steps, by place."""
    rows, concurrent, uses = steps.sections.rows, steps.sections.concurrent, Uses()
    for i, use in uses_by_row(rows, payloads):
        place = SectionPlace(int(rows["name"][i]), "", bool(concurrent[i]), in_step=True)
        uses.setdefault(place, []).append(use)
    return uses


def epoch_of(payload: dict[str, Any]) -> int | None:
    """Return the epoch that the program reported in a payload; None if missing or invalid."""
    return _whole((payload.get("a") or {}).get(names.TRAINING_EPOCH))


def _whole(value: object) -> int | None:
    """Return ``value`` if it is an integer that the tables can store, else None.

    An invalid value from the user's program must not prevent other rows from being stored.
    """
    if isinstance(value, int) and not isinstance(value, bool) and -_LIMIT <= value < _LIMIT:
        return value
    return None
