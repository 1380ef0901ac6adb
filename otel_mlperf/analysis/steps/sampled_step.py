"""One step with its sections and sampled spans, on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.analysis.steps.annotated_step import has_recorded_steps, read_annotated
from otel_mlperf.analysis.steps.step_records import StepRows, read_spans
from otel_mlperf.analysis.steps.step_selection import nearby_steps, no_such_step
from otel_mlperf.analysis.steps.step_shapes import (
    RankStep,
    StepFindings,
    StepMark,
    StepOnGpu,
    StepSection,
)
from otel_mlperf.analysis.steps.step_shares import (
    UNTRACKED,
    main_phase,
    read_warm_up,
    shown,
    shown_around,
)
from otel_mlperf.errors import NoSuchStep
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.store.run_folders import RunFolder

_STARTED = """WITH begun AS (
    SELECT rank, restart, phase, n, number, epoch, start_ns, end_ns, duration_ns, self_ns,
           samples, tokens, error, kept, trace_id FROM steps
    UNION ALL
    SELECT rank, restart, phase, n, number, epoch, start_ns, end_ns, end_ns - start_ns, NULL, NULL,
           NULL, true, kept, trace_id FROM spans
    WHERE interrupted AND span_id = root_id AND n IS NOT NULL
)"""
"""SQL of ended steps, and of steps that were open when their process died and have only spans."""
_MAX_LISTED = 10


def read_step(
    run: RunFolder,
    number: int | None = None,
    phase: str | None = None,
    rank: int | None = None,
    *,
    operators: bool = True,
) -> StepFindings:
    """Return the step that the user's program numbered ``number``, on ``rank`` or on every rank.

    If the number was reused, return the newest step. If ``number`` is None, return the slowest step
    with spans. If ``operators``, the spans of a profiled step include operators. If a run has no
    recorded steps, as in imported traces, return a step from a profiler's annotations.

    Raises:
        NoSuchStep: the phase, or the rank, has no step ``number``.
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
    ranks = _rank_steps(store, steps, operators=operators)
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
    return store.records(
        f"{_STARTED} SELECT * FROM begun WHERE phase = $phase AND number = $number "
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
    """Return the number of the slowest step with spans, and the lowest numbers of steps with spans.

    The warm-up is returned as the slowest step only if no other step has spans.
    """
    kept = store.rows(
        f"{_STARTED} SELECT number, max(duration_ns) FROM begun WHERE phase = $phase "
        "AND kept IS NOT NULL AND ($rank IS NULL OR rank = $rank) GROUP BY number ORDER BY number",
        phase=phase,
        rank=rank,
    )
    if not kept:
        raise NoSuchStep(no_such_step(store, run, None, phase, rank))
    warm_up = read_warm_up(store, phase)
    # The warm-up is the slowest step of nearly every run, for a known reason.
    usual = [step for step in kept if warm_up is None or step[0] != warm_up.number]
    slowest = max(usual or kept, key=lambda step: step[1])
    return slowest[0], [number for number, _ in kept[:_MAX_LISTED]]


def _rank_steps(store: Store, steps: list[dict[str, Any]], *, operators: bool) -> list[RankStep]:
    rows = StepRows(store, steps)
    outside = rows.outside(step["rank"] for step in steps if _outside_ns(step))
    spans = read_spans(store, steps, operators=operators)
    return [
        RankStep(
            rank=(rank := step["rank"]),
            duration_ns=step["duration_ns"],
            outside_ns=_outside_ns(step),
            outside=[shown(name) for (name,) in outside.get(rank, ())],
            kept=step["kept"],
            is_error=step["error"],
            samples=step["samples"],
            tokens=step["tokens"],
            sections=_sections(step, rows.sections.get(rank, ())),
            spans=spans.get(rank, []),
            gpu=_on_gpu(rows.gpu.get(rank, ())),
            marks=[StepMark(name=name, after_ns=after) for name, after in rows.marks.get(rank, ())],
        )
        for step in steps
    ]


def _sections(step: dict[str, Any], rows: Sequence[tuple[Any, ...]]) -> list[StepSection]:
    sections = [
        StepSection(
            name=shown(name),
            count=count,
            sum_ns=total,
            self_ns=own,
            beside=beside,
            inside=shown_around(around, step["phase"]),
            aggregate=aggregate,
            is_part=is_part,
            min_ns=least,
            max_ns=most,
        )
        for name, count, total, own, beside, aggregate, around, is_part, least, most in rows
    ]
    own = step["self_ns"]
    if own is not None:
        rest = StepSection(name=UNTRACKED, count=1, sum_ns=own, self_ns=own, beside=False)
        # After the sections that sum to the step together with it, and before concurrent sections.
        sections.insert(sum(not section.beside for section in sections), rest)
    return sections


def _outside_ns(step: dict[str, Any]) -> int:
    outside_ns: int = step["end_ns"] - step["start_ns"] - step["duration_ns"]
    return max(0, outside_ns)


def _on_gpu(rows: Sequence[tuple[Any, ...]]) -> StepOnGpu | None:
    for gpu_ns, idle_ns, is_host, is_device in rows[:1]:
        by = "host" if is_host else "device" if is_device else ""
        return StepOnGpu(gpu_ns=gpu_ns, idle_ns=idle_ns, paced_by=by)
    return None
