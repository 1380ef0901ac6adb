"""Slow ranks: ranks that take far longer in a section than the median of the ranks."""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.steps.step_shapes import StandOut
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.steps.step_shapes import RankFigures

_SLOW: Final = row_of("straggler")
"""Row of the findings table whose value is a rank's mean divided by the median of the ranks."""


def stand_outs(ranks: Sequence[RankFigures], mean_ns: float) -> list[StandOut]:
    """Return the ranks that take far longer in a section than the median, largest excess first.

    The excess must also exceed a certain share of ``mean_ns``, the mean step time.
    """
    excess: dict[int, dict[str, float]] = {}
    for name in dict.fromkeys(name for of_rank in ranks for name in of_rank.sections):
        means = {of_rank.rank: of_rank.sections.get(name, 0.0) for of_rank in ranks}
        # Of two ranks the faster one is typical: the slower one is to be reported.
        usual = median_low(means.values())
        # A rank without the section counts as zero: the only rank that has it stands out.
        for rank, mean in means.items():
            if mean > _SLOW.threshold * usual and mean - usual > _SLOW.min_step_share * mean_ns:
                excess.setdefault(rank, {})[name] = mean - usual
    sorted_ranks = sorted(excess, key=lambda rank: (-sum(excess[rank].values()), rank))
    return [
        StandOut(rank=rank, more_ns=dict(sorted(excess[rank].items(), key=lambda item: -item[1])))
        for rank in sorted_ranks
    ]
