"""Confidence intervals keep their promise, for steps that are not independent."""

from __future__ import annotations

import numpy as np
import pytest

from otel_mlperf.analysis.steps.mean_estimates import (
    TRIMMED,
    Estimate,
    block_length,
    compare_estimates,
    estimate_mean,
)


def steps(rng, count, memory=0.0, stalls=0.0):
    """Times of steps: five percent apart, alike in a row by ``memory``, some far longer."""
    drawn = rng.standard_normal(count + 50)
    for at in range(1, count + 50):
        drawn[at] = memory * drawn[at - 1] + drawn[at] * np.sqrt(1 - memory**2)
    times = 10e6 * (1 + 0.05 * drawn[50:])
    return times * np.where(rng.random(count) < stalls, 1 + rng.pareto(2, count), 1)


def test_a_mean_of_independent_times_has_the_textbooks_error():
    """Where nothing is remembered a block is one step, and the error is s / √n."""
    times = steps(np.random.default_rng(1), 2_000)

    found = estimate_mean(times)

    assert found.value == pytest.approx(times.mean())
    assert found.error == pytest.approx(times.std() / np.sqrt(2_000), rel=0.02)
    assert block_length(times) == 1


def test_what_remembers_has_longer_blocks_and_a_larger_error():
    """Steps that are alike in a row tell less than as many that are not."""
    times = steps(np.random.default_rng(2), 4_000, memory=0.9)

    found = estimate_mean(times)

    # Of this series (an autoregression) it is (1 + 0.9) / (1 - 0.9) = 19 times the variance.
    textbook = times.std() * np.sqrt(19 / 4_000)
    assert found.error == pytest.approx(textbook, rel=0.25)
    assert block_length(times) > 10


def test_a_usual_time_is_the_trimmed_mean():
    """The shortest and the longest tenth are not in it."""
    times = np.array([1000.0, *range(1, 9), 0.0])

    assert estimate_mean(times, TRIMMED).value == pytest.approx(4.5)


@pytest.mark.parametrize(("memory", "stalls"), [(0.0, 0.0), (0.5, 0.0), (0.0, 0.03)])
def test_equal_runs_are_rarely_called_different(memory, stalls):
    """Of 500 pairs of equal runs about five lie outside of an interval of 99 %."""
    rng = np.random.default_rng(3)
    outside = 0
    for _ in range(500):
        before, after = (estimate_mean(steps(rng, 300, memory, stalls), TRIMMED) for _ in range(2))
        found = compare_estimates(before, after, 0.99)
        outside += found is not None and (found.low > 0 or found.high < 0)

    assert outside <= 15


@pytest.mark.parametrize(("memory", "stalls"), [(0.0, 0.0), (0.0, 0.03), (0.3, 0.0)])
def test_three_percent_of_300_steps_are_found(memory, stalls):
    """In 95 of 100 pairs and more, where the steps lie five percent apart."""
    rng = np.random.default_rng(4)
    found = 0
    for _ in range(200):
        before = estimate_mean(steps(rng, 300, memory, stalls), TRIMMED)
        after = estimate_mean(1.03 * steps(rng, 300, memory, stalls), TRIMMED)
        interval = compare_estimates(before, after, 0.99)
        found += interval is not None and interval.low > 0

    assert found >= 190


def test_too_little_tells_nothing():
    """A single step, a few blocks, and no time at all have no interval."""
    enough = Estimate(10.0, 0.1, 100.0)

    assert estimate_mean(np.array([5.0])) == Estimate(5.0, None, 1.0)
    assert compare_estimates(enough, Estimate(5.0, None, 1.0), 0.99) is None
    assert compare_estimates(enough, Estimate(10.0, 0.1, 5.0), 0.99) is None
    assert compare_estimates(enough, Estimate(0.0, 0.0, 100.0), 0.99) is None


def test_times_without_any_difference_are_surely_the_same():
    """A clock that ticks evenly has no error, and the interval no width."""
    even = estimate_mean(np.full(100, 7.0))

    found = compare_estimates(even, even, 0.99)

    assert (found.ratio, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_few_stalls_decide_nothing():
    """Of three among 300 steps nobody knows how often they come; without them the mean is known."""
    rng = np.random.default_rng(1)
    even = 10e6 * (1 + 0.03 * rng.standard_normal(300))
    stalled = even.copy()
    stalled[[40, 150, 260]] *= 20

    assert compare_estimates(estimate_mean(even), estimate_mean(even * 1.03), 0.99).low > 0
    assert compare_estimates(estimate_mean(even), estimate_mean(stalled), 0.99) is None
    assert compare_estimates(estimate_mean(even, 0.1), estimate_mean(stalled, 0.1), 0.99)
