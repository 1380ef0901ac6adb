"""What happened in one step, on every rank that kept it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.analysis.profiles.section_operators import read_operators
from otel_mlperf.analysis.steps.annotated_step import has_recorded_steps, read_annotated
from otel_mlperf.analysis.steps.span_tree import draw_tree
from otel_mlperf.analysis.steps.step_selection import nearby_steps, no_such_step
from otel_mlperf.analysis.steps.step_shapes import (
    RankStep,
    StepFindings,
    StepMark,
    StepOnGpu,
    StepSection,
)
from otel_mlperf.analysis.steps.step_shares import (
    NOT_IN_A_SPAN,
    main_phase,
    read_warm_up,
    shown,
    shown_around,
)
from otel_mlperf.errors import NoSuchStep
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.analysis.steps.step_shapes import Span
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
_LISTED = 10
_MOST_MARKS = 100


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
    ``operators``. Of a run into which traces from elsewhere were put it is the step that their
    annotations show.

    Raises:
        NoSuchStep: there is no step of that number in that phase, or on that rank.
    """
    store = Store(run.path)
    if not has_recorded_steps(store) and (
        annotated := read_annotated(run, number, phase, rank, operators=operators)
    ):
        return annotated
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
        "SELECT name, sum(count)::BIGINT, sum(sum_ns)::BIGINT, sum(self_ns)::BIGINT, beside, "
        "aggregate, parent, min(min_ns), max(max_ns) "
        "FROM sections WHERE rank = $rank AND restart = $restart AND phase = $phase AND n = $n "
        "GROUP BY name, beside, aggregate, parent ORDER BY beside, min(start_ns), aggregate",
        **key,
    )
    sections = [
        StepSection(
            name=shown(name),
            count=count,
            sum_ns=total,
            self_ns=own,
            beside=beside,
            inside=shown_around(around, step["phase"]),
            aggregate=aggregate,
            min_ns=least,
            max_ns=most,
        )
        for name, count, total, own, beside, aggregate, around, least, most in rows
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
        spans=read_spans(store, step, operators=operators),
        gpu=_on_gpu(store, key),
        marks=_marks(store, step),
    )


def _on_gpu(store: Store, key: dict[str, Any]) -> StepOnGpu | None:
    rows = store.rows(
        "SELECT gpu_ns, idle_ns, host_paced_ns * 2 > gpu_ns, device_paced_ns * 2 > gpu_ns "
        "FROM gpu_steps WHERE rank = $rank AND restart = $restart AND phase = $phase AND n = $n",
        **key,
    )
    for gpu_ns, idle_ns, is_host, is_device in rows[:1]:
        by = "host" if is_host else "device" if is_device else ""
        return StepOnGpu(gpu_ns=gpu_ns, idle_ns=idle_ns, paced_by=by)
    return None


def _marks(store: Store, step: dict[str, Any]) -> list[StepMark]:
    rows = store.rows(
        "SELECT name, time_ns - $start FROM marks WHERE rank = $rank AND restart = $restart "
        "AND phase = $phase AND time_ns BETWEEN $start AND $end ORDER BY time_ns LIMIT $most",
        rank=step["rank"],
        restart=step["restart"],
        phase=step["phase"],
        start=step["start_ns"],
        end=step["end_ns"],
        most=_MOST_MARKS,
    )
    return [StepMark(name=name, after_ns=after) for name, after in rows]


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


def read_spans(store: Store, root: dict[str, Any], *, operators: bool) -> list[Span]:
    """The kept spans of one trace on one rank, parents before their children.

    Args:
        store: of the run.
        root: trace id, rank, restart, and the start from which their times count.
        operators: with what a profiler saw under each.
    """
    rows = store.records(
        "SELECT * FROM spans WHERE trace_id = $trace AND rank = $rank AND restart = $restart "
        "AND kind NOT IN ('event', 'event_rollup') "  # thousands: rolled up by name
        "ORDER BY start_ns, end_ns DESC",
        trace=root["trace_id"],
        rank=root["rank"],
        restart=root["restart"],
    )
    under = read_operators(store, root, rows) if operators else {}
    return draw_tree(rows, under, root["start_ns"])
