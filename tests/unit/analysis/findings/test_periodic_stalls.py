"""Stalls at equal distances are distinguished from steps that are long at any time."""

from __future__ import annotations

import numpy as np
import pytest

from otel_mlperf.analysis.findings.periodic_stalls import find_stalls
from otel_mlperf.analysis.steps.step_series import StepSeries

STEP_NS = 20e6
LONGER = 0.6


def series(durations, numbers=None):
    nothing = np.zeros(len(durations))
    numbers = np.arange(len(durations)) if numbers is None else numbers
    return StepSeries(numbers, STEP_NS * durations, nothing, nothing)


def uneven(rng, spread, kind="normal", steps=500):
    """Times of steps around 1.0, by which standard deviation and of which shape."""
    if kind == "normal":
        return 1 + spread * rng.standard_normal(steps)
    return np.exp(spread * rng.standard_normal(steps))


def stalled(rng, times, at):
    """The same with a stall at these steps, each as uneven as the others."""
    times = times.copy()
    times[at] *= 1 + LONGER
    return times


@pytest.mark.parametrize("kind", ["normal", "lognormal"])
@pytest.mark.parametrize("spread", [0.10, 0.15])
def test_a_small_stall_every_fifty_steps_is_found_under_noise(spread, kind):
    """Sixty percent longer, of 500 steps that differ by 10 or 15 %: in 99 of 100 runs and more."""
    periods = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        at = np.arange(rng.integers(50), 500, 50)
        comb = find_stalls(series(stalled(rng, uneven(rng, spread, kind), at)))
        periods.append(comb and comb.period)

    assert periods.count(50) >= 198


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["normal", "lognormal"])
@pytest.mark.parametrize("spread", [0.10, 0.15])
def test_as_many_stalls_at_any_time_accuse_nobody(spread, kind):
    """Of 1,000 runs with the same stalls at random steps at most ten are called periodic."""
    rng = np.random.default_rng(7)
    runs = (
        stalled(rng, uneven(rng, spread, kind), rng.choice(500, 10, replace=False))
        for _ in range(1_000)
    )

    assert sum(find_stalls(series(times)) is not None for times in runs) <= 10


def test_slow_moments_of_some_steps_accuse_nobody():
    """A neighbour that comes eight times for five steps each is not periodic in 1,000 runs."""
    rng = np.random.default_rng(11)
    found = 0
    for _ in range(1_000):
        begins = rng.choice(495, 8, replace=False)
        at = np.unique((begins[:, None] + np.arange(5)).ravel())
        found += find_stalls(series(stalled(rng, uneven(rng, 0.1), at))) is not None

    assert found <= 10


def test_stalls_in_the_later_part_alone_are_found():
    """What the loop does from its middle on, every twenty steps."""
    rng = np.random.default_rng(1)
    comb = find_stalls(series(stalled(rng, uneven(rng, 0.1), np.arange(260, 500, 20))))

    assert comb is not None
    assert (comb.period, comb.first, comb.last) == (20, 260, 480)


def test_periods_are_of_the_numbers_that_the_program_gave():
    """A program that counts batches of four, and a step that is left out."""
    rng = np.random.default_rng(2)
    times, numbers = stalled(rng, uneven(rng, 0.1), np.arange(9, 500, 25)), 4 * np.arange(500)
    kept = np.arange(500) != 100
    comb = find_stalls(series(times[kept], numbers[kept]))

    assert comb is not None
    assert (comb.period, comb.first) == (100, 36)
    assert comb.teeth(numbers).sum() == 20


def test_a_long_run_is_judged_by_its_latest_stalls():
    """Of 60,000 steps in which thousands are long, every thirtieth is."""
    rng = np.random.default_rng(3)
    comb = find_stalls(
        series(stalled(rng, uneven(rng, 0.15, steps=60_000), np.arange(7, 60_000, 30)))
    )

    assert comb is not None
    assert comb.period == 30
    assert comb.last == 59_977


@pytest.mark.parametrize(
    "times",
    [np.ones(500), np.linspace(1, 3, 500), np.where(np.arange(500) < 400, 1.0, 2.0)],
    ids=["even", "ever longer", "longer at the end"],
)
def test_no_stalls(times):
    """Steps that are long one after the other come at no distance."""
    assert find_stalls(series(times)) is None
