"""What happened in one step, on every rank that kept it?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.profiles.section_operators import read_operators
from otel_mlperf.analysis.steps.step_selection import nearby_steps, no_such_step
from otel_mlperf.analysis.steps.step_shapes import RankStep, Span, StepFindings, StepSection
from otel_mlperf.analysis.steps.step_shares import NOT_IN_A_SPAN, main_phase, read_warm_up, shown
from otel_mlperf.errors import NoSuchStep
from otel_mlperf.intervals import CoveredTime
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.store.run_folders import RunFolder

_BEGUN = """WITH begun AS (
    SELECT rank, restart, phase, n, number, epoch, start_ns, end_ns, duration_ns, self_ns,
           samples, tokens, error, kept, trace_id FROM steps
    UNION ALL
    SELECT rank, restart, phase, n, number, epoch, start_ns, end_ns, end_ns - start_ns, NULL, NULL,
           NULL, true, kept, trace_id FROM spans
    WHERE interrupted AND span_id = root_id AND n IS NOT NULL
)"""
"""The steps that ended, and those that were open when their process died: they have only spans."""
_Track = tuple[int, str]
_LISTED = 10
_ROLL_UP = "rollup"


def read_step(
    run: RunFolder,
    number: int | None = None,
    phase: str | None = None,
    rank: int | None = None,
    *,
    operators: bool = True,
) -> StepFindings:
    """The step with the user's ``number``; the newest, if the number was used again.

    Without a number it is the slowest step with spans. Those of a profiled step come with its
    ``operators``.

    Raises:
        NoSuchStep: there is no step of that number in that phase, or on that rank.
    """
    store = Store(run.path)
    phase = phase or main_phase(store) or names.TRAIN
    kept: list[int] = []
    is_chosen = number is None
    if number is None:
        number, kept = _slowest_kept(store, run, phase, rank)
    steps = _newest_of_number(store, phase, number, rank)
    if not steps:
        raise NoSuchStep(no_such_step(store, run, number, phase, rank))
    first = steps[0]
    ranks = [_rank_step(store, step, operators=operators) for step in steps]
    return StepFindings(
        id=run.facts.id,
        short_id=run.short_id,
        number=number,
        phase=phase,
        restart=first["restart"],
        n=first["n"],
        epoch=first["epoch"],
        trace_id=first["trace_id"],
        ranks=ranks,
        chosen=is_chosen,
        kept=kept,
        nearby=[]
        if any(of_rank.spans for of_rank in ranks)
        else nearby_steps(store, phase, number),
    )


def _newest_of_number(
    store: Store, phase: str, number: int, rank: int | None
) -> list[dict[str, Any]]:
    """The step on each rank; of a number that was used again, the last use on any rank."""
    return store.records(
        f"{_BEGUN} SELECT * FROM begun WHERE phase = $phase AND number = $number "
        "AND ($rank IS NULL OR rank = $rank) "
        "QUALIFY (restart, n) = last_value((restart, n)) OVER (ORDER BY start_ns, rank "
        "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) ORDER BY rank",
        phase=phase,
        number=number,
        rank=rank,
    )


def _slowest_kept(
    store: Store, run: RunFolder, phase: str, rank: int | None
) -> tuple[int, list[int]]:
    """The slowest step with spans but the warm-up, and the first numbers of all that have some."""
    kept = store.rows(
        f"{_BEGUN} SELECT number, max(duration_ns) FROM begun WHERE phase = $phase "
        "AND kept IS NOT NULL AND ($rank IS NULL OR rank = $rank) GROUP BY number ORDER BY number",
        phase=phase,
        rank=rank,
    )
    if not kept:
        raise NoSuchStep(no_such_step(store, run, None, phase, rank))
    warm_up = read_warm_up(store, phase)
    # The warm-up is the slowest of nearly every run, and what it shows is known beforehand.
    usual = [step for step in kept if warm_up is None or step[0] != warm_up.number]
    slowest = max(usual or kept, key=lambda step: step[1])
    return slowest[0], [number for number, _ in kept[:_LISTED]]


def _rank_step(store: Store, step: dict[str, Any], *, operators: bool) -> RankStep:
    key = {name: step[name] for name in ("rank", "restart", "phase", "n")}
    rows = store.rows(
        "SELECT name, sum(count)::BIGINT, sum(sum_ns)::BIGINT, sum(self_ns)::BIGINT, beside "
        "FROM sections WHERE rank = $rank AND restart = $restart AND phase = $phase AND n = $n "
        "GROUP BY name, beside ORDER BY beside, min(start_ns)",
        **key,
    )
    sections = [
        StepSection(name=shown(name), count=count, sum_ns=total, self_ns=own, beside=beside)
        for name, count, total, own, beside in rows
    ]
    # A duration is without what others did inside: a validation, the start of a profiler.
    outside = max(0, step["end_ns"] - step["start_ns"] - step["duration_ns"])
    own = step["self_ns"]
    if own is not None:
        rest = StepSection(name=NOT_IN_A_SPAN, count=1, sum_ns=own, self_ns=own, beside=False)
        # Behind those that add up with it to the step, before those beside.
        sections.insert(sum(not section.beside for section in sections), rest)
    return RankStep(
        rank=step["rank"],
        duration_ns=step["duration_ns"],
        outside_ns=outside,
        outside=_names_outside(store, step) if outside else [],
        kept=step["kept"],
        is_error=step["error"],
        samples=step["samples"],
        tokens=step["tokens"],
        sections=sections,
        spans=_spans(store, step, operators=operators),
    )


def _names_outside(store: Store, step: dict[str, Any]) -> list[str]:
    """What of other traces lay directly inside the step, on its thread."""
    rows = store.rows(
        "WITH inside AS (SELECT * FROM spans WHERE rank = $rank AND restart = $restart "
        "AND trace_id <> $trace AND kind = 'section' AND start_ns >= $start AND end_ns <= $end "
        "AND track IN (SELECT track FROM spans WHERE trace_id = $trace AND rank = $rank "
        "AND span_id = root_id)) "
        "SELECT name FROM inside WHERE parent_id NOT IN (SELECT span_id FROM inside) "
        "GROUP BY name ORDER BY sum(end_ns - start_ns) DESC, name",
        rank=step["rank"],
        restart=step["restart"],
        trace=step["trace_id"],
        start=step["start_ns"],
        end=step["end_ns"],
    )
    return [shown(name) for (name,) in rows]


def _spans(store: Store, step: dict[str, Any], *, operators: bool) -> list[Span]:
    rows = store.records(
        "SELECT * FROM spans WHERE trace_id = $trace AND rank = $rank AND restart = $restart "
        "AND kind NOT IN ('event', 'event_rollup') "  # thousands: rolled up by name
        "ORDER BY start_ns, end_ns DESC",
        trace=step["trace_id"],
        rank=step["rank"],
        restart=step["restart"],
    )
    ids = {row["span_id"] for row in rows}
    inside: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        # What names itself as its parent would never be reached, and what lost its parent neither:
        # both hang at the top.
        parent = row["parent_id"] if row["parent_id"] != row["span_id"] else ""
        inside.setdefault(parent if parent in ids else "", []).append(row)
    under = read_operators(store, step, rows) if operators else {}
    spans: list[Span] = []
    pending = [(row, 0, _track(row)) for row in reversed(inside.get("", []))]
    # By a list and not by recursion: sections nest as deep as a program likes.
    while pending:
        row, depth, track = pending.pop()
        below = inside.get(row["span_id"], [])
        pending += [(child, depth + 1, track) for child in reversed(below)]
        span = _span(row, below, depth, track, step["start_ns"])
        spans.append(msgspec.structs.replace(span, operators=under.get(row["span_id"], [])))
    return spans


def _span(
    row: dict[str, Any], below: list[dict[str, Any]], depth: int, track: _Track, begin: int
) -> Span:
    attributes = json.loads(row["attributes"] or "{}")
    return Span(
        name=row["name"],
        category=row["category"],
        depth=depth,
        span_id=row["span_id"],
        start_ns=row["start_ns"] - begin,
        duration_ns=attributes.get(names.ROLLED_UP_SUM, row["end_ns"] - row["start_ns"]),
        self_ns=_own_ns(row, below),
        thread=row["thread"],
        beside=_track(row) != track,
        is_error=row["status"] == "error",
        kind=row["kind"],
        attributes=attributes,
    )


def _track(row: dict[str, Any]) -> _Track:
    return row["track"], row["thread"]


def _own_ns(row: dict[str, Any], below: list[dict[str, Any]]) -> int:
    """The span's time minus the union of its children on the same track, which come by start."""
    own, cover = row["end_ns"] - row["start_ns"], CoveredTime(row["start_ns"])
    for child in below:
        if _track(child) != _track(row):
            continue
        # A roll-up covers gaps between its parts, too: only their sum was spent in it.
        if child["kind"] == _ROLL_UP:
            own -= json.loads(child["attributes"])[names.ROLLED_UP_SUM]
            continue
        cover.add(child["start_ns"], min(child["end_ns"], row["end_ns"]))
    return max(0, int(own) - cover.covered_ns)
