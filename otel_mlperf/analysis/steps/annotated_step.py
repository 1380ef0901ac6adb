"""A step that is known only from a profiler's annotation, as in imported traces.

The sections of the step are the annotations of the user's program. Annotations inside an operator
count as operators. Operators and kernels are listed under the innermost section around their
launch.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.analysis.profiles.profiled_steps import (
    choose_step,
    find_profiled,
    read_step_events,
)
from otel_mlperf.analysis.profiles.section_operators import roll_up_operators
from otel_mlperf.analysis.steps.span_tree import draw_tree
from otel_mlperf.analysis.steps.step_shapes import RankStep, StepFindings
from otel_mlperf.store.table_reader import Store
from otel_mlperf.tables.window_tables import WindowRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.profiles.profiled_steps import ProfiledStep
    from otel_mlperf.store.run_folders import RunFolder

_KEPT: Final = "profiled"
_MAX_LISTED: Final = 10
_ANNOTATION: Final = "user_annotation"
_FRAME: Final = "python_function"
_Rows = list[dict[str, Any]]


def has_recorded_steps(store: Store) -> bool:
    """Return whether steps were recorded; False if only a profiler's annotations contain steps."""
    anything = "SELECT 1 FROM steps UNION ALL SELECT 1 FROM spans WHERE n IS NOT NULL LIMIT 1"
    return bool(store.rows(anything))


def read_annotated(
    run: RunFolder, number: int | None, phase: str | None, rank: int | None, *, operators: bool
) -> StepFindings | None:
    """Return the annotated step ``number``; None if no trace has annotated steps.

    If ``number`` is None, return the longest step. ``rank`` None means all ranks. If ``operators``,
    sections include profiled operators.

    Raises:
        NoSuchStep: no trace contains that step.
        StoreError: a file of the run cannot be read.
    """
    store = Store(run.path, rank)
    known = [step for step in find_profiled(store.read(WindowRow)) if not step.phase]
    if not known:
        return None
    wanted = _longest(store, known) if number is None else number
    chosen = choose_step(known, wanted, phase, f"run {run.short_id}")
    name = chosen[0].name
    found = read_step_events(store, chosen)
    ((trace,),) = store.rows(
        "SELECT trace_id FROM spans WHERE kind = 'event' AND name = $name LIMIT 1", name=name
    )
    return StepFindings(
        id=run.facts.id,
        short_id=run.short_id,
        number=wanted,
        phase="",
        restart=chosen[0].restart,
        n=wanted,
        epoch=None,
        trace_id=trace,
        ranks=[
            _rank_step(of_rank, length_ns, name, found.events, operators=operators)
            for of_rank, length_ns in sorted(found.lengths_ns.items())
        ],
        chosen=number is None,
        kept=sorted({step.number for step in known})[:_MAX_LISTED] if number is None else [],
        nearby=[],
    )


def _longest(store: Store, known: Sequence[ProfiledStep]) -> int:
    numbers = {step.name: step.number for step in known}
    rows = store.rows(
        "SELECT name FROM spans WHERE kind = 'event' AND category <> $device "
        "AND list_contains($names, name) ORDER BY end_ns - start_ns DESC, name LIMIT 1",
        device=names.KERNEL,
        names=list(numbers),
    )
    return numbers[rows[0][0]] if rows else known[0].number


def _rank_step(rank: int, length_ns: int, name: str, events: _Rows, *, operators: bool) -> RankStep:
    mine = sorted(
        (row for row in events if row["rank"] == rank),
        key=lambda row: (row["start_ns"], -row["end_ns"]),
    )
    sections = _sections(mine)
    inner = {row["span_id"] for row in sections}
    rest = [row for row in mine if row["span_id"] not in inner]
    under = roll_up_operators(rest, sections) if operators else {}
    begin_ns = next(row["start_ns"] for row in sections if row["name"] == name)
    return RankStep(
        rank=rank,
        duration_ns=length_ns,
        outside_ns=0,
        outside=[],
        kept=_KEPT,
        is_error=False,
        samples=None,
        tokens=None,
        sections=[],
        spans=draw_tree(sections, under, begin_ns),
    )


def _sections(events: _Rows) -> _Rows:
    """Return the annotations outside operators, each with the enclosing annotation as parent."""
    by_id = {row["span_id"]: row for row in events}
    activity = {row["span_id"]: _activity(row) for row in events}

    def above(row: dict[str, Any], passed: tuple[str, ...]) -> dict[str, Any] | None:
        over = by_id.get(row["parent_id"])
        while over is not None and activity[over["span_id"]] in passed:
            over = by_id.get(over["parent_id"])
        return over

    sections = []
    for row in events:
        if activity[row["span_id"]] != _ANNOTATION or above(row, (_ANNOTATION, _FRAME)):
            continue
        parent = above(row, (_FRAME,))
        more = {"parent_id": parent["span_id"] if parent else "", "status": "unset"}
        sections.append(row | more | {"kind": "event"})
    return sections


def _activity(row: dict[str, Any]) -> str | None:
    activity: str | None = json.loads(row["attributes"] or "{}").get(names.PROFILER_ACTIVITY)
    return activity
