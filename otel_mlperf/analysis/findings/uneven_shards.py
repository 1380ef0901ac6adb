"""Finding of a rank with more data than the other ranks, which therefore wait.

The rank has more data in each step (larger batches, longer samples) or overall (more batches). The
finding refers to the rank with more data, not to the ranks that wait.
"""

from __future__ import annotations

from statistics import mean, median_low
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf.analysis.findings.rank_steps import read_rank_steps
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.rank_steps import RankSteps
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_MIN_STEPS: Final = 10


class _Amount(NamedTuple):
    """Amount of data by rank: ``what`` is steps, samples or elements."""

    what: str
    by_rank: dict[int, float]

    @property
    def most(self) -> int:
        return max(self.by_rank, key=lambda rank: self.by_rank[rank])

    @property
    def times(self) -> float:
        """Return the largest amount divided by the median; with two ranks, by the smaller one."""
        usual = median_low(self.by_rank.values())
        return self.by_rank[self.most] / usual if usual else 0.0

    @property
    def spare(self) -> float:
        """Return the excess of the largest amount over the mean, divided by the largest amount."""
        return 1.0 - mean(self.by_rank.values()) / self.by_rank[self.most]


@once_a_run
def find_uneven_shards(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if the largest amount of data of a rank is far above the ranks' median."""
    steps, row = numbers.summary.steps, row_of("uneven_shards")
    if steps is None or numbers.summary.rank is not None or len(steps.ranks) < 2:
        return []
    made = _Amount("steps", {one.rank: float(one.count) for one in steps.ranks})
    if min(made.by_rank.values()) >= _MIN_STEPS and row.holds(made.times):
        return [_of_run(numbers, made)]
    ranks = read_rank_steps(numbers)
    amounts = [one for one in _in_steps(ranks) if row.holds(one.times)]
    if not amounts:
        return []
    return [_of_step(numbers, max(amounts, key=lambda one: one.times), ranks)]


def _in_steps(ranks: list[RankSteps]) -> list[_Amount]:
    known = []
    for what in ("samples", "elements"):
        by_rank = {one.rank: getattr(one, what) for one in ranks}
        if by_rank and all(by_rank.values()):
            known.append(_Amount(what, {rank: float(sum) for rank, sum in by_rank.items()}))
    return known


def _of_run(numbers: RunNumbers, made: _Amount) -> Finding:
    steps = numbers.summary.steps
    assert steps is not None
    long_ns = next(one.mean_ns * one.count for one in steps.ranks if one.rank == made.most)
    of_run = min(1.0, long_ns / numbers.summary.duration_ns)
    # The minimum is 0: ranks with fewer steps may have waited in each step as well.
    return _finding(numbers, made, Gain(low=0.0, high=made.spare * of_run, of="run"))


def _of_step(numbers: RunNumbers, amount: _Amount, ranks: list[RankSteps]) -> Finding:
    most = next(one for one in ranks if one.rank == amount.most)
    # The rank's own work scales with the amount; the constant part of a step is unknown.
    own_ns = most.step_ns - most.collectives_ns
    share = max(0.0, own_ns / most.step_ns) * amount.spare
    return _finding(numbers, amount, Gain(low=share / 2, high=share))


def _finding(numbers: RunNumbers, amount: _Amount, gain: Gain) -> Finding:
    row = row_of("uneven_shards")
    what = amount.what if amount.what == "steps" else f"{amount.what} per step"
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(rank=amount.most, value=amount.times, what=what),
        action=row.action,
        evidence={
            f"rank {rank} {amount.what}": value for rank, value in sorted(amount.by_rank.items())
        },
        where=Where(rank=amount.most),
        gain=gain,
        command=f"otel-mlperf summary {numbers.summary.short_id} --rank {amount.most}",
    )
