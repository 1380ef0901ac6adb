"""Heat map of step times by rank and time.

The steps of a run are divided into as many buckets as the map has columns. The map contains every
rank's mean for each bucket. A rank that is always slow is visible as a row. A period in which all
ranks were slow is visible as a column. The map includes the same steps as the summary's figures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.analysis.steps.step_shares import CHOSEN

if TYPE_CHECKING:
    from otel_mlperf.analysis.steps.step_shapes import StepFigures
    from otel_mlperf.store.table_reader import Store

MOST: Final = 120
"""Maximum number of columns."""
MAX_RANKS: Final = 128
"""Maximum number of ranks; if exceeded, the ranks with the longest mean step are shown."""
_MEANS: Final = f"""{CHOSEN}, numbered AS (
    SELECT restart, n,
           (row_number() OVER (ORDER BY min(start_ns), restart, n) - 1) // $size AS piece
    FROM chosen GROUP BY restart, n
), slowest AS (
    SELECT rank FROM chosen GROUP BY rank ORDER BY avg(duration_ns) DESC, rank LIMIT $ranks
)
SELECT rank, piece, min(start_ns), min(number), max(number), avg(duration_ns)
FROM chosen JOIN numbered USING (restart, n) SEMI JOIN slowest USING (rank)
GROUP BY rank, piece ORDER BY rank, piece"""


class RankMap(msgspec.Struct, frozen=True, kw_only=True):
    """Mean step times by rank and bucket; each row of the means has one entry per bucket."""

    ranks: list[int]
    """Ranks, ascending."""
    start_ns: list[int]
    """Earliest start of a bucket on any rank: Unix time."""
    first: list[int]
    """Smallest step number of each bucket."""
    last: list[int]
    mean_ns: list[list[float | None]]
    """One row per rank; None: the rank has no step in that bucket."""


def read_rank_map(store: Store, steps: StepFigures, *, has_warm_up: bool) -> RankMap | None:
    """Return the rank map; None if the run has one rank, or if no step was evaluated.

    The first step is excluded if ``has_warm_up``.
    """
    if len(steps.ranks) < 2:
        return None
    values: dict[str, Any] = {"phase": steps.phase, "first": 1 if has_warm_up else 0}
    sql = f"{CHOSEN} SELECT count(DISTINCT (restart, n)) FROM chosen"
    ((count,),) = store.rows(sql, **values)
    if not count:
        return None
    size = -(-count // MOST)
    found = store.rows(_MEANS, size=size, ranks=MAX_RANKS, **values)
    means = {(rank, piece): mean for rank, piece, _, _, _, mean in found}
    pieces: dict[int, list[tuple[int, int, int]]] = {}
    for _, piece, start, first, last, _ in found:
        pieces.setdefault(piece, []).append((start, first, last))
    ranks, columns = sorted({rank for rank, _ in means}), sorted(pieces)
    return RankMap(
        ranks=ranks,
        start_ns=[min(start for start, _, _ in pieces[piece]) for piece in columns],
        first=[min(first for _, first, _ in pieces[piece]) for piece in columns],
        last=[max(last for _, _, last in pieces[piece]) for piece in columns],
        mean_ns=[[means.get((rank, piece)) for piece in columns] for rank in ranks],
    )
