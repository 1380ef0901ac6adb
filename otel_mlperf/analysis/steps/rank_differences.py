"""Which rank is slower than the others, and in what?"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.analysis.steps.step_shapes import RankFigures, StandOut
from otel_mlperf.analysis.steps.step_shares import NOT_IN_A_SPAN, OWN, shown
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.steps.step_shapes import WarmUp
    from otel_mlperf.store.table_reader import Store

_SLOW: Final = row_of("straggler")
"""Its value is a mean over the median of the ranks."""


def read_ranks(store: Store, phase: str, warm_up: WarmUp | None) -> list[RankFigures]:
    """The mean step of each rank, and what of it each section took itself."""
    values: dict[str, Any] = {"phase": phase, "first": 1 if warm_up else 0}
    steps = store.rows(
        f"{OWN} SELECT rank, count(*), avg(duration_ns), avg(self_ns) FROM chosen "
        "GROUP BY rank ORDER BY rank",
        **values,
    )
    sections: dict[int, dict[str, float]] = {rank: {} for rank, *_ in steps}
    counts = {rank: count for rank, count, *_ in steps}
    # Divided by all steps of the rank: one that has a section in a few steps is not slow in it.
    for rank, name, own in store.rows(
        f"{OWN} SELECT rank, name, sum(own) FROM own WHERE NOT beside "
        "GROUP BY rank, name ORDER BY avg(since), name",
        **values,
    ):
        sections[rank][shown(name)] = float(own) / counts[rank]
    return [
        RankFigures(
            rank=rank, count=count, mean_ns=mean, sections=sections[rank] | {NOT_IN_A_SPAN: own}
        )
        for rank, count, mean, own in steps
    ]


def stand_outs(ranks: Sequence[RankFigures], mean_ns: float) -> list[StandOut]:
    """What takes a rank far longer than its likes, the rank that loses most by it first."""
    excess: dict[int, dict[str, float]] = {}
    for name in dict.fromkeys(name for of_rank in ranks for name in of_rank.sections):
        means = {of_rank.rank: of_rank.sections.get(name, 0.0) for of_rank in ranks}
        # Of two the shorter one is usual: the longer one is what there is to tell.
        usual = median_low(means.values())
        # A rank without the section counts as zero: whoever has it alone stands out.
        for rank, mean in means.items():
            if mean > _SLOW.threshold * usual and mean - usual > _SLOW.matters * mean_ns:
                excess.setdefault(rank, {})[name] = mean - usual
    sorted_ranks = sorted(excess, key=lambda rank: (-sum(excess[rank].values()), rank))
    return [
        StandOut(rank=rank, more_ns=dict(sorted(excess[rank].items(), key=lambda item: -item[1])))
        for rank in sorted_ranks
    ]
