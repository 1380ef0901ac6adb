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

UNTRACKED = "untracked"
DATA_WAIT = "data wait"
COLLECTION = "garbage collection"
PROFILED = "profiled"
"""Sampling reason (column ``kept``) of the steps in a profiler window."""
_MIN_STEPS = 3
LONGER = 2.0
"""Minimum duration of a warm-up step, in multiples of the median of the other steps."""

# A step that an error cut short is not representative: it counts only if all steps failed.
CHOSEN = """WITH counted AS (SELECT * FROM steps WHERE phase = $phase AND n >= $first),
chosen AS (SELECT * FROM counted WHERE NOT error OR (SELECT bool_and(error) FROM counted))"""
_OF_STEP = "phase = $phase AND rank = $rank AND restart = $restart AND n = $n"

_SHOWN = {names.SPAN_DATA: DATA_WAIT, names.SPAN_COLLECTION: COLLECTION}


def shown(name: str) -> str:
    """Return the displayed name of a section."""
    return _SHOWN.get(name, name)


def shown_around(name: str, phase: str) -> str:
    """Return the displayed name of an enclosing section; ``the step itself`` if it is the step."""
    return "the step itself" if name == names.step_span(phase) else shown(name)


def share_of(steps: StepFigures, *categories: str) -> float:
    """Return the share of sections of ``categories`` in a step, without concurrent sections."""
    return sum(row.share for row in steps.rows if row.category in categories and not row.beside)


def share_of_passes(steps: StepFigures) -> float:
    """Return the share of forward and backward passes in a step, without concurrent sections."""
    return share_of(steps, names.FORWARD, names.BACKWARD)


def main_phase(store: Store) -> str | None:
    """Return ``train`` or else the phase that started first; None if the run has no steps."""
    rows = store.rows("SELECT phase FROM steps GROUP BY phase ORDER BY min(start_ns)")
    phases = [row[0] for row in rows]
    return names.TRAIN if names.TRAIN in phases else next(iter(phases), None)


def count_steps(store: Store, phase: str | None) -> int:
    """Return the number of steps of a phase, counted once for all ranks; 0 if ``phase`` is None."""
    sql = "SELECT DISTINCT restart, n FROM steps WHERE phase = $phase"
    ((count,),) = store.rows(f"SELECT count(*) FROM ({sql})", phase=phase)
    return int(count)


def last_step(store: Store, phase: str | None) -> int | None:
    """Return the number of the slowest rank's last finished step; None if no step has finished."""
    at = "((restart::BIGINT << 40) + n)"
    ((number,),) = store.rows(
        f"SELECT arg_min(number, place) FROM (SELECT max({at}) AS place, "
        f"arg_max(number, {at}) AS number FROM steps WHERE phase = $phase GROUP BY rank)",
        phase=phase,
    )
    return None if number is None else int(number)


def count_profiled(store: Store, phase: str | None) -> int:
    """Return the number of the phase's steps that a profiler recorded on any rank."""
    ((count,),) = store.rows(
        "SELECT count(DISTINCT (restart, n)) FROM steps WHERE phase = $phase AND kept = $kept",
        phase=phase,
        kept=PROFILED,
    )
    return int(count)


def read_warm_up(store: Store, phase: str) -> WarmUp | None:
    """Return the first step if it lasted more than twice the median of the other steps, else None.

    The first step compiles, allocates and fills caches, and would distort every mean. If there are
    fewer than three steps, the typical duration is unknown and the result is None.
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
    if not slowest or others < _MIN_STEPS - 1 or slowest[0][1] <= LONGER * usual:
        return None
    return WarmUp(number=slowest[0][0], duration_ns=slowest[0][1])


def read_steps(store: Store, phase: str, warm_up: WarmUp | None) -> StepFigures:
    """Return the figures of a phase's steps over all ranks; the rows sum to the mean step.

    Steps that ended in an error are included only in the number of steps, unless all steps failed.
    ``stand_outs`` remains empty.
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
    rows.insert(sum(not row.beside for row in rows), _row(UNTRACKED, "", own, own_p95, mean))
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
    """Return the slowest step after the warm-up, and the section with most of the step's time.

    Steps that a profiler slowed down count only if there are no other steps.
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
    # With equal times the first one wins: untracked time has precedence over a section.
    name, longest = max([(UNTRACKED, own), *sections], key=lambda section: section[1])
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
    """Return the SQL of the rate per second of ``column``, summed over all ranks.

    Because ranks step together, this is the sum of all known values divided by the time of all
    steps of one rank. That time includes steps without samples, because such steps update again for
    the same batch.
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
    # Divided by all steps of the rank: a rank with a section in few steps is not slow in it.
    return [
        RankFigures(
            rank=rank,
            count=count,
            mean_ns=mean,
            sections={
                shown(name): float(spent) / count
                for name, spent in times.of_ranks.get(rank, {}).items()
            }
            | {UNTRACKED: own},
        )
        for rank, count, mean, own in steps
    ]


def _around_collections(store: Store, values: dict[str, Any]) -> str:
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
