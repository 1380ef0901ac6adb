"""Which steps are kept."""

from __future__ import annotations

import random

import pytest

from otel_mlperf.agent.model.agent_state import RankState
from otel_mlperf.agent.model.sampling import Policy, reason_to_keep
from otel_mlperf.journal.meta import JournalMeta

META = JournalMeta(
    run_id="r", run_name="n", run_folder="/x", service="s", host="h", pid=1, run_span=7,
    monotonic_ns=5, unix_ns=9,
)  # fmt: skip
S = 10**9


def decide(rank, n, duration=10, now=0, *, error=False):
    return reason_to_keep(Policy(), rank, "train", n, duration, now, error=error)


def test_first_five_and_every_hundredth_are_kept() -> None:
    """By their number alone, so that all ranks keep the same."""
    rank = RankState(META, "i")
    kept = {n: reason for n in range(301) if (reason := decide(rank, n))}

    assert kept == dict.fromkeys(range(5), "first") | dict.fromkeys((100, 200, 300), "every")


@pytest.mark.parametrize(("duration", "reason"), [(20, None), (21, "slow")])
def test_slow_is_over_twice_the_median(duration, reason) -> None:
    """Twice the median of the last hundred is not slow, more is."""
    rank = RankState(META, "i")
    decide(rank, 4, 50)
    for n in range(5, 55):
        decide(rank, n, 10)

    assert decide(rank, 55, duration) == reason


def test_the_longest_step_is_kept_whatever_else_is() -> None:
    """Or one that is longer by less than a fiftieth; what is called the slowest can be opened."""
    rank, rng = RankState(META, "i"), random.Random(1)
    took = [1000, *(int(100 * (1 + n / 400 + 0.1 * rng.random())) for n in range(800))]
    kept = [n for n, duration in enumerate(took) if decide(rank, n, duration)]

    # The warm-up says nothing of the others.
    assert max(took[n] for n in kept[1:]) >= 0.98 * max(took[1:])
    assert len(kept) < 80


def test_a_failed_step_is_not_the_longest() -> None:
    """The figures are without it."""
    rank = RankState(META, "i")
    for n in range(20):
        decide(rank, n, 10)
    decide(rank, 20, 90, error=True)

    assert decide(rank, 21, 15) == "longest"


def test_slow_steps_are_limited_by_the_minute() -> None:
    """Six a minute; a minute later there is room again."""
    rank = RankState(META, "i")
    for n in range(5, 55):
        decide(rank, n, 10)
    first = [decide(rank, 60 + i, 1000, now=i) for i in range(8)]

    assert first.count("slow") == 6
    assert decide(rank, 70, 1000, now=61 * S) == "slow"


def test_failed_steps_are_limited_by_the_minute() -> None:
    """Sixty a minute."""
    rank = RankState(META, "i")
    kept = [decide(rank, 5 + i, error=True) for i in range(90)]

    assert kept.count("error") == 60


@pytest.mark.parametrize(
    ("world_size", "spans"), [(1, 2000), (2, 2000), (4, 1250), (1000, 5), (10_000, 1)]
)
def test_ranks_share_the_budget_of_a_trace(world_size, spans) -> None:
    """A rank sends two thousand spans of a trace at most, all together five thousand."""
    assert Policy().spans_of_rank(world_size) == spans


def test_of_a_thousand_ranks_eight_show_a_step_whole() -> None:
    """They follow from the trace id alone; the others send their step, all together 5,000 spans."""
    spans = [Policy().spans_of_step(rank, 1000, bytes(range(16)), "first") for rank in range(1000)]

    assert spans.count(1) == 992
    assert set(spans) == {1, 500}
    assert sum(spans) <= 5000
    assert spans != [
        Policy().spans_of_step(rank, 1000, bytes(range(1, 17)), "first") for rank in range(1000)
    ]


def test_profiled_step_is_kept_whatever_the_sampling() -> None:
    """Its duration, which the profiler stretched, makes no other step slow or fast."""
    rank = RankState(META, "i")
    for n in range(5, 55):
        decide(rank, n, 10)

    kept = [reason_to_keep(Policy(), rank, "train", n, 900, 0, error=False, profiled=True)
            for n in range(55, 155)]  # fmt: skip

    assert set(kept) == {"profiled"}
    assert decide(rank, 155, 21) == "slow"


def test_profiled_step_is_whole_on_its_rank() -> None:
    """Whether or not the trace id names the rank: the profiler's events go under its sections."""
    spans = [Policy().spans_of_step(rank, 1000, bytes(16), "profiled") for rank in range(1000)]

    assert set(spans) == {2000}
