"""Where does the time of one step go?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.steps.step_shapes import AggregateTotal, Row, Slowest, StepFigures, WarmUp

if TYPE_CHECKING:
    from otel_mlperf.store.table_reader import Store

NOT_IN_A_SPAN = "not in a span"
DATA_WAIT = "data wait"
PROFILED = "profiled"
"""Why the steps of a profiler window are kept."""
_FEWEST = 3
"""Steps of a rank from which on a slow first one is told apart from slow ones."""
_LONGER = 2.0
_P95 = 0.95

# A step that an error cut short says nothing about the others, unless there are no others.
_CHOSEN = """WITH counted AS (SELECT * FROM steps WHERE phase = $phase AND n >= $first),
chosen AS (SELECT * FROM counted WHERE NOT error OR (SELECT bool_and(error) FROM counted))"""
OWN = f"""{_CHOSEN}, own AS (
    SELECT name, min(category) AS category, beside, rank, restart, n, sum(s.self_ns) AS own,
           min(s.start_ns - chosen.start_ns) AS since
    FROM sections s JOIN chosen USING (rank, restart, n)
    WHERE s.phase = $phase AND NOT aggregate
    GROUP BY ALL
)"""


def shown(name: str) -> str:
    """A section's name as people read it."""
    return DATA_WAIT if name == names.SPAN_DATA else name


def main_phase(store: Store) -> str | None:
    """The phase that a run is about: train, else the one whose steps began first."""
    rows = store.rows("SELECT phase FROM steps GROUP BY phase ORDER BY min(start_ns)")
    phases = [row[0] for row in rows]
    return names.TRAIN if names.TRAIN in phases else next(iter(phases), None)


def count_steps(store: Store, phase: str | None) -> int:
    """Steps of a phase on one rank, those of each start; none without a phase."""
    sql = "SELECT count(DISTINCT (restart, n)) FROM steps WHERE phase = $phase"
    ((count,),) = store.rows(sql, phase=phase)
    return int(count)


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
    if not slowest or others < _FEWEST - 1 or slowest[0][1] <= _LONGER * usual:
        return None
    return WarmUp(number=slowest[0][0], duration_ns=slowest[0][1])


def read_steps(
    store: Store, phase: str, warm_up: WarmUp | None, aggregates: list[AggregateTotal]
) -> StepFigures:
    """The figures of a phase's steps over all ranks; the rows add up to the mean step.

    A step that ended in an error counts in the number of steps alone.
    """
    values: dict[str, Any] = {"phase": phase, "first": 1 if warm_up else 0}
    (chosen, mean, p50, p95, own, own_p95, samples, tokens), *_ = store.rows(
        f"{_CHOSEN} SELECT count(*), avg(duration_ns), quantile_disc(duration_ns, 0.5), "
        "quantile_disc(duration_ns, 0.95), avg(self_ns), quantile_disc(self_ns, 0.95), "
        f"{_rate('samples')}, {_rate('tokens')} FROM chosen",
        **values,
    )
    # Aggregates are added up over every step, those too that the other figures leave out.
    ((ran,),) = store.rows("SELECT count(*) FROM steps WHERE phase = $phase", phase=phase)
    rows = _section_rows(store, values, chosen, mean)
    rows.insert(sum(not row.beside for row in rows), _row(NOT_IN_A_SPAN, "", own, own_p95, mean))
    mine = [
        aggregate for aggregate in aggregates if aggregate.phase == phase and not aggregate.beside
    ]
    return StepFigures(
        phase=phase,
        count=count_steps(store, phase),
        mean_ns=mean,
        p50_ns=p50,
        p95_ns=p95,
        samples_per_s=samples,
        tokens_per_s=tokens,
        rows=_with_aggregates(rows, mine, phase, ran, mean),
        ranks=[],
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
        f"{_CHOSEN} SELECT rank, restart, n, number, duration_ns, self_ns, kept IS NOT NULL, "
        f"{profiled}, (SELECT number FROM chosen WHERE kept IS NOT NULL {order}) "
        f"FROM chosen {order}",
        **values,
    )
    sections = store.rows(
        "SELECT name, sum(self_ns) AS own FROM sections WHERE phase = $phase AND rank = $rank "
        "AND restart = $restart AND n = $n AND NOT beside GROUP BY name ORDER BY own DESC LIMIT 1",
        phase=steps.phase,
        rank=rank,
        restart=restart,
        n=n,
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
    )


def _rate(column: str) -> str:
    """Per second over all ranks: they step together."""
    return (
        f"sum({column}) * 1e9 / sum(duration_ns) FILTER ({column} IS NOT NULL) "
        f"* count(DISTINCT rank) FILTER ({column} IS NOT NULL)"
    )


def _section_rows(store: Store, values: dict[str, Any], chosen: int, mean: float) -> list[Row]:
    """One row for each section, in the order in which they begin; those beside the step last."""
    # Steps in which a section did not occur count as zero: they are the start of the sorted list.
    at = f"({math.ceil(_P95 * chosen)} - {chosen} + count(*))"
    rows = store.rows(
        f"{OWN} SELECT name, min(category), beside, sum(own), "
        f"CASE WHEN {at} > 0 THEN list_sort(list(own))[{at}] ELSE 0 END "
        "FROM own GROUP BY name, beside ORDER BY beside, avg(since), name",
        **values,
    )
    return [
        _row(shown(name), category, float(own) / chosen, p95, mean, beside)
        for name, category, beside, own, p95 in rows
    ]


def _row(
    name: str, category: str, own: float, p95: int | None, mean: float, beside: bool = False
) -> Row:
    share = own / mean if mean else 0.0
    return Row(name=name, category=category, mean_ns=own, p95_ns=p95, share=share, beside=beside)


def _with_aggregates(
    rows: list[Row], aggregates: list[AggregateTotal], phase: str, ran: int, mean: float
) -> list[Row]:
    """Takes each aggregate's time out of the row around it and puts it below as its own.

    They have no single steps, so the mean is over all that ran, and no p95 is known.
    """
    for aggregate in aggregates:
        outer = shown(aggregate.enclosing)
        if aggregate.enclosing == names.step_span(phase):
            outer = NOT_IN_A_SPAN
        for at, row in enumerate(rows):
            if row.name != outer or row.beside or row.aggregate:
                continue
            # The two means are over different steps: without a limit a row might go below zero.
            own = min(aggregate.sum_ns / ran, row.mean_ns)
            rest = _row(row.name, row.category, row.mean_ns - own, None, mean)
            inner = msgspec.structs.replace(
                _row(aggregate.name, aggregate.category, own, None, mean), aggregate=True
            )
            rows = [
                *rows[:at],
                # What is in no span stays last of the rows that add up.
                *((inner, rest) if outer == NOT_IN_A_SPAN else (rest, inner)),
                *rows[at + 1 :],
            ]
            break
    return rows
