"""Breakdown of the mean step by section, with the warm-up and the slowest step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.steps.own_times import read_own_times
from otel_mlperf.analysis.steps.step_shapes import (
    RankFigures,
    Row,
    Slowest,
    StepFigures,
    WarmUp,
)

if TYPE_CHECKING:
    from otel_mlperf.analysis.steps.own_times import OwnTimes, SectionTime
    from otel_mlperf.store.table_reader import Store

NOT_IN_A_SPAN = "not in a span"
DATA_WAIT = "data wait"
COLLECTION = "garbage collection"
PROFILED = "profiled"
"""Why the steps of a profiler window are kept."""
_FEWEST = 3
"""Steps of a rank from which on a slow first one is told apart from slow ones."""
LONGER = 2.0
"""Times the median of the others from which on the first step is warm-up."""

# A step that an error cut short says nothing about the others, unless there are no others.
CHOSEN = """WITH counted AS (SELECT * FROM steps WHERE phase = $phase AND n >= $first),
chosen AS (SELECT * FROM counted WHERE NOT error OR (SELECT bool_and(error) FROM counted))"""
_OF_STEP = "phase = $phase AND rank = $rank AND restart = $restart AND n = $n"

_SHOWN = {names.SPAN_DATA: DATA_WAIT, names.SPAN_COLLECTION: COLLECTION}


def shown(name: str) -> str:
    """A section's name as people read it."""
    return _SHOWN.get(name, name)


def shown_around(name: str, phase: str) -> str:
    """The same of what something fell into in a step of ``phase``; of the step itself, no span."""
    return "no span" if name == names.step_span(phase) else shown(name)


def share_of_passes(steps: StepFigures) -> float:
    """Share of a step that forward and backward take, 0.0 to 1.0; what runs beside it is none."""
    passes = (names.FORWARD, names.BACKWARD)
    return sum(row.share for row in steps.rows if row.category in passes and not row.beside)


def main_phase(store: Store) -> str | None:
    """The phase that a run is about: train, else the one whose steps began first."""
    rows = store.rows("SELECT phase FROM steps GROUP BY phase ORDER BY min(start_ns)")
    phases = [row[0] for row in rows]
    return names.TRAIN if names.TRAIN in phases else next(iter(phases), None)


def count_steps(store: Store, phase: str | None) -> int:
    """Steps of a phase on one rank, those of each start; none without a phase."""
    sql = "SELECT DISTINCT restart, n FROM steps WHERE phase = $phase"
    ((count,),) = store.rows(f"SELECT count(*) FROM ({sql})", phase=phase)
    return int(count)


def last_step(store: Store, phase: str | None) -> int | None:
    """Number of the step that ended last, on the rank that is behind the others; None: none has."""
    at = "((restart::BIGINT << 40) + n)"
    ((number,),) = store.rows(
        f"SELECT arg_min(number, place) FROM (SELECT max({at}) AS place, "
        f"arg_max(number, {at}) AS number FROM steps WHERE phase = $phase GROUP BY rank)",
        phase=phase,
    )
    return None if number is None else int(number)


def count_profiled(store: Store, phase: str | None) -> int:
    """Steps of the phase, of any rank, in which a profiler recorded."""
    ((count,),) = store.rows(
        "SELECT count(DISTINCT (restart, n)) FROM steps WHERE phase = $phase AND kept = $kept",
        phase=phase,
        kept=PROFILED,
    )
    return int(count)


def read_warm_up(store: Store, phase: str) -> WarmUp | None:
    """The first step, if it took over twice the median of the others.

    It compiles, allocates and fills caches, and would bend every mean. With fewer than three steps
    nobody can say what is usual: all of them count.
    """
    (usual, others), *_ = store.rows(
        "SELECT quantile_disc(duration_ns, 0.5), count(DISTINCT n) FROM steps "
        "WHERE phase = $phase AND n > 0",
        phase=phase,
    )
    slowest = store.rows(
        "SELECT number, duration_ns FROM steps WHERE phase = $phase AND n = 0 "
        "ORDER BY duration_ns DESC LIMIT 1",
        phase=phase,
    )
    if not slowest or others < _FEWEST - 1 or slowest[0][1] <= LONGER * usual:
        return None
    return WarmUp(number=slowest[0][0], duration_ns=slowest[0][1])


def read_steps(store: Store, phase: str, warm_up: WarmUp | None) -> StepFigures:
    """The figures of a phase's steps over all ranks; the rows add up to the mean step.

    A step that ended in an error counts in the number of steps alone. Ranks are told apart by
    their mean step, and by what of it each section took itself.
    """
    values: dict[str, Any] = {"phase": phase, "first": 1 if warm_up else 0}
    (chosen, mean, p50, p95, own, own_p95, samples, tokens), *_ = store.rows(
        f"{CHOSEN} SELECT count(*), avg(duration_ns), quantile_disc(duration_ns, 0.5), "
        "quantile_disc(duration_ns, 0.95), avg(self_ns), quantile_disc(self_ns, 0.95), "
        f"{per_second('samples')}, {per_second('tokens')} FROM chosen",
        **values,
    )
    times = read_own_times(store, **values, chosen=chosen)
    rows = [_section_row(store, values, section, chosen, mean) for section in times.sections]
    rows.insert(sum(not row.beside for row in rows), _row(NOT_IN_A_SPAN, "", own, own_p95, mean))
    return StepFigures(
        phase=phase,
        count=count_steps(store, phase),
        mean_ns=mean,
        p50_ns=p50,
        p95_ns=p95,
        samples_per_s=samples,
        tokens_per_s=tokens,
        rows=rows,
        ranks=_read_ranks(store, values, times),
        stand_outs=[],
    )


def read_slowest(store: Store, steps: StepFigures, warm_up: WarmUp | None) -> Slowest | None:
    """The longest step that the figures are about, and what it did for most of its time.

    Those that a profiler has slowed down only where there are no others.
    """
    values = {"phase": steps.phase, "first": 1 if warm_up else 0, "profiled": PROFILED}
    profiled = "coalesce(kept, '') = $profiled"
    order = f"ORDER BY {profiled}, duration_ns DESC, start_ns LIMIT 1"
    (rank, restart, n, number, duration, own, kept, is_profiled, kept_number), *_ = store.rows(
        f"{CHOSEN} SELECT rank, restart, n, number, duration_ns, self_ns, kept IS NOT NULL, "
        f"{profiled}, (SELECT number FROM chosen WHERE kept IS NOT NULL {order}) "
        f"FROM chosen {order}",
        **values,
    )
    key = {"phase": steps.phase, "rank": rank, "restart": restart, "n": n}
    sections = store.rows(
        f"SELECT name, sum(self_ns) AS own FROM sections WHERE {_OF_STEP} AND NOT beside "
        "GROUP BY name ORDER BY own DESC LIMIT 1",
        **key,
    )
    ((collected, around),) = store.rows(
        "SELECT coalesce(sum(self_ns), 0)::BIGINT, "
        "arg_max(CASE WHEN beside THEN '' ELSE parent END, self_ns) "
        f"FROM sections WHERE {_OF_STEP} AND category = $collection",
        **key,
        collection=names.GARBAGE_COLLECTION,
    )
    # Of equal ones the first is taken: no section is blamed for what is in none, too.
    name, longest = max([(NOT_IN_A_SPAN, own), *sections], key=lambda section: section[1])
    return Slowest(
        number=number,
        rank=rank,
        duration_ns=duration,
        section=shown(name),
        section_ns=longest,
        kept=kept,
        profiled=is_profiled,
        kept_number=kept_number,
        collection_ns=collected,
        collection_in=shown_around(around or "", steps.phase),
    )


def per_second(column: str) -> str:
    """SQL: how much of it a second, over all ranks, which step together.

    All that is known / the time of all steps of a rank: also of steps that took none, because they
    update again for the same batch.
    """
    return f"sum({column}) * 1e9 / sum(duration_ns) * count(DISTINCT rank)"


def _section_row(
    store: Store, values: dict[str, Any], section: SectionTime, chosen: int, mean: float
) -> Row:
    is_collection = section.category == names.GARBAGE_COLLECTION and not section.beside
    inside = _around_collections(store, values) if is_collection else shown(section.wait)
    row = _row(
        shown(section.name),
        section.category,
        float(section.sum_ns) / chosen,
        section.p95_ns,
        mean,
        section.beside,
        section.aggregate,
    )
    return msgspec.structs.replace(row, inside=inside) if inside else row


def _read_ranks(store: Store, values: dict[str, Any], times: OwnTimes) -> list[RankFigures]:
    steps = store.rows(
        f"{CHOSEN} SELECT rank, count(*), avg(duration_ns), avg(self_ns) FROM chosen "
        "GROUP BY rank ORDER BY rank",
        **values,
    )
    # Divided by all steps of the rank: one that has a section in a few steps is not slow in it.
    return [
        RankFigures(
            rank=rank,
            count=count,
            mean_ns=mean,
            sections={
                shown(name): float(spent) / count
                for name, spent in times.of_ranks.get(rank, {}).items()
            }
            | {NOT_IN_A_SPAN: own},
        )
        for rank, count, mean, own in steps
    ]


def _around_collections(store: Store, values: dict[str, Any]) -> str:
    """The section that most of the garbage collections' time fell into."""
    ((around, _),) = store.rows(
        f"{CHOSEN} SELECT parent, sum(s.self_ns) AS own FROM sections s "
        "JOIN chosen USING (rank, restart, n) WHERE s.phase = $phase AND NOT beside "
        "AND category = $collection GROUP BY parent ORDER BY own DESC, parent LIMIT 1",
        **values,
        collection=names.GARBAGE_COLLECTION,
    )
    return shown_around(around, values["phase"])


def _row(
    name: str,
    category: str,
    own: float,
    p95: int,
    mean: float,
    beside: bool = False,
    aggregate: bool = False,
) -> Row:
    share = own / mean if mean else 0.0
    return Row(
        name=name,
        category=category,
        mean_ns=own,
        p95_ns=p95,
        share=share,
        beside=beside,
        aggregate=aggregate,
    )
