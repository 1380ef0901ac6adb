"""Step times, amounts of data and collective times of each rank, over steps that all ranks have.

Explicit collectives are sections of the category communication. DDP's collectives run inside the
backward pass, without a section: DDP itself measures the time in which these do not overlap with
computation.

The rank that arrives last in a collective waits for no other rank, so its time in the collective is
the time of the exchange. Additional time of other ranks is a wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.steps.step_ranges import step_ranges
from otel_mlperf.analysis.steps.step_shares import PROFILED

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.store.table_reader import Store

_MIN_STEPS: Final = 10
_CHOSEN: Final = """SELECT * FROM steps WHERE phase = $phase AND n >= {low} AND n < {high}
    AND NOT error AND coalesce(kept, '') <> $profiled"""
_RANKS: Final = f"SELECT count(DISTINCT rank) FROM ({_CHOSEN.format(low='$first', high='$end')})"
_PIECE: Final = f"""WITH chosen AS ({_CHOSEN.format(low="$low", high="$high")}),
whole AS (SELECT restart, n FROM chosen GROUP BY ALL HAVING count(*) = $ranks),
apart AS (SELECT rank, restart, n, sum(self_ns) AS ns FROM sections
    WHERE phase = $phase AND n >= $low AND n < $high AND NOT beside AND category = $communication
    GROUP BY ALL),
each AS (SELECT c.*, coalesce(apart.ns, 0) AS apart FROM chosen c JOIN whole USING (restart, n)
    LEFT JOIN apart USING (rank, restart, n)),
waited AS (SELECT *, apart - min(apart) OVER (PARTITION BY restart, n) AS waited FROM each)
SELECT rank, count(*), sum(duration_ns)::BIGINT, sum(apart)::BIGINT, sum(waited)::BIGINT,
    sum(samples)::BIGINT, sum(elements)::BIGINT FROM waited GROUP BY rank"""
_NO_END: Final = 1 << 62
_EXPOSED: Final = """SELECT rank, arg_max(value, time_ns) * 1e9 FROM readings
    WHERE name = $name AND rank IS NOT NULL GROUP BY rank"""


class RankSteps(NamedTuple):
    """Figures of one rank over the steps that all ranks have; times are means per step, in ns."""

    rank: int
    made: int
    """Number of steps that all ranks have."""
    step_ns: float
    apart_ns: float
    """Time in sections of collectives."""
    waited_ns: float
    """Part of ``apart_ns`` beyond that of the rank with the shortest time in the same step."""
    in_backward_ns: float
    """Time of the backward pass in DDP collectives during which nothing was computed."""
    samples: float | None
    elements: float | None
    """Samples and elements (``samples``, ``elements``) in all of these steps; None: unknown."""

    @property
    def collectives_ns(self) -> float:
        """Return the recorded time in collectives per step, in and outside the backward pass."""
        return self.apart_ns + self.in_backward_ns


@once_a_run
def read_rank_steps(numbers: RunNumbers) -> list[RankSteps]:
    """Return the figures of each rank; empty if there is one rank or too few common steps."""
    summary = numbers.summary
    if summary.steps is None or summary.rank is not None or len(summary.steps.ranks) < 2:
        return []
    exposed = dict(numbers.store.rows(_EXPOSED, name=names.DDP_EXPOSED_COMMUNICATION.name))
    ranks = [
        RankSteps(
            rank, made, step / made, apart / made, waited / made, exposed.get(rank, 0.0), *amounts
        )
        for rank, (made, step, apart, waited, *amounts) in sorted(
            _sums_by_rank(numbers.store, summary.steps.phase, 1 if summary.warm_up else 0).items()
        )
    ]
    return ranks if ranks and ranks[0].made >= _MIN_STEPS else []


def _sums_by_rank(store: Store, phase: str, first: int) -> dict[int, list[Any]]:
    """Return by rank the number of common steps with ``n >= first``, and the sums of ``_PIECE``."""
    values = {"phase": phase, "profiled": PROFILED}
    ((ranks,),) = store.rows(_RANKS, **values, first=first, end=_NO_END)
    sums: dict[int, list[Any]] = {}
    for low, high in step_ranges(store, first):
        about = {"ranks": ranks, "low": low, "high": high, "communication": names.COMMUNICATION}
        for rank, *more in store.rows(_PIECE, **values, **about):
            known = sums.get(rank)
            # A sum is None if its values are unknown: _sum handles that.
            sums[rank] = more if known is None else [*map(_sum, known, more)]
    return sums


def _sum(known: int | None, more: int | None) -> int | None:
    if known is None or more is None:
        return known if more is None else more
    return known + more
