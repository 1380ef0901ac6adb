"""Estimates of mean durations with standard errors, and confidence intervals of their ratio.

Steps are not independent: a slow moment of the machine affects several steps. Therefore the error
of a mean is derived from blocks of steps, as in a block bootstrap. The variance of the moving block
bootstrap of a mean, in the limit of many resamples, has a closed form (Künsch 1989, The jackknife
and the bootstrap for general stationary observations). No random numbers are drawn, so results are
reproducible. For a trimmed mean the same formula is applied to its influence values, which are the
winsorized times (Huber 1981, Robust statistics, section 3.3).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[np.float64]

TRIMMED: Final = 0.1
"""Share of values that a trimmed mean excludes at each end: the shortest and the longest."""
_PIECES: Final = 10
FEWEST_BLOCKS: Final = 8.0
"""Minimum number of blocks, because with fewer the error of the mean is itself too inaccurate."""


class Estimate(msgspec.Struct, frozen=True):
    """Estimate of a mean with its standard error."""

    value: float
    error: float | None
    """Standard error, in the unit of ``value``; None: unknown for a single value."""
    blocks: float
    """Effective number of independent blocks from which the error is estimated."""


class Interval(msgspec.Struct, frozen=True):
    """Confidence interval of a relative change; a value of 0.03 means 3 % longer."""

    ratio: float
    low: float
    high: float


def estimate_mean(times: Times, trimmed: float = 0.0) -> Estimate:
    """Return a mean with its standard error; the ``trimmed`` share is excluded at either end.

    ``times`` must be in the order of measurement, and must not be empty.
    """
    count = len(times)
    cut = int(trimmed * count)
    ordered = np.sort(times)
    value = float(ordered[cut : count - cut].mean())
    if count < 2:
        return Estimate(value, None, 1.0)
    influence = np.clip(times, ordered[cut], ordered[count - cut - 1]) / (1 - 2 * cut / count)
    length = block_length(influence)
    error = math.sqrt(_long_run_variance(influence, length) / count)
    return Estimate(value, error, count / length * _evenness(influence))


def _evenness(values: Times) -> float:
    """Return the fraction of the blocks that counts as independent (at most 1.0).

    If a few stalls dominate the spread of the values, the observed spread is uncertain. The
    variance of a variance is (kurtosis - 1) / 2 times that of normal values (Cramér 1946,
    Mathematical methods of statistics, section 27.4). The number of blocks is divided by this
    factor.
    """
    squares = (values - values.mean()) ** 2
    whole = float(squares.mean())
    if whole <= 0:
        return 1.0
    kurtosis = float((squares**2).mean()) / whole**2
    return min(1.0, 2 / (kurtosis - 1)) if kurtosis > 1 else 1.0


def compare_estimates(
    before: Estimate, after: Estimate, confidence: float, fewest: float = FEWEST_BLOCKS
) -> Interval | None:
    """Return the relative change from ``before`` to ``after``, with its confidence interval.

    The interval is computed with Student's t on the logarithm of the ratio, with Welch's degrees of
    freedom. The result is None if an estimate is not positive, has no error, or has fewer than
    ``fewest`` blocks.
    """
    if before.error is None or after.error is None or min(before.value, after.value) <= 0:
        return None
    if min(before.blocks, after.blocks) < fewest:
        return None
    first, second = before.error / before.value, after.error / after.value
    ratio = math.log(after.value / before.value)
    error = math.hypot(first, second)
    reach = error * student(confidence, _freedom(first, before.blocks, second, after.blocks))
    return Interval(math.expm1(ratio), math.expm1(ratio - reach), math.expm1(ratio + reach))


def block_length(values: Times) -> int:
    """Return the number of steps per block; 1 if the values are not correlated.

    The method is that of Politis and White (2004, Automatic block-length selection for the
    dependent bootstrap, with the correction of 2009), for circular blocks.
    """
    count = len(values)
    deviations = values - values.mean()
    variance = float(deviations @ deviations) / count
    run = max(5, math.ceil(math.sqrt(math.log10(count))))
    most = min(count - 1, math.ceil(math.sqrt(count)) + run)
    if variance <= 0 or most < 2:
        return 1
    covariances = np.array(
        [deviations[lag:] @ deviations[: count - lag] / count for lag in range(most + 1)]
    )
    limit = 2 * math.sqrt(math.log10(count) / count)
    is_small = np.abs(covariances[1:] / variance) < limit
    forgets = _first_run(is_small, run)
    reach = min(2 * max(forgets, 1), most)
    lags = np.arange(1, reach + 1)
    weights = np.clip(2 * (1 - lags / reach), 0.0, 1.0)
    sums = weights * covariances[1 : reach + 1]
    slope = 2 * float(lags @ sums)
    spectrum = float(covariances[0] + 2 * sums.sum())
    if forgets == 0 or spectrum <= 0:
        return 1
    best = float((2 * slope**2 / (4 / 3 * spectrum**2)) ** (1 / 3) * count ** (1 / 3))
    # The autocorrelation of a periodic pattern never vanishes: limit the length in any case, so
    # that enough blocks remain.
    return max(1, min(math.ceil(best), math.ceil(3 * math.sqrt(count)), count // _PIECES))


def _first_run(is_small: NDArray[np.bool_], run: int) -> int:
    """Return the number of lags before the first ``run`` consecutive small lags, or all lags."""
    for before in range(len(is_small) - run + 1):
        if is_small[before : before + run].all():
            return before
    return len(is_small)


def _long_run_variance(values: Times, length: int) -> float:
    count = len(values)
    sums = np.concatenate(([0.0], np.cumsum(values - values.mean())))
    means = (sums[length:] - sums[:-length]) / length
    # Corrects a bias: blocks vary around the mean of the same values.
    return float(length * np.mean(means**2) / (1 - length / count))


def _freedom(first: float, blocks: float, second: float, other_blocks: float) -> float:
    """Return the degrees of freedom of a difference of two means, after Welch.

    ``first`` and ``second`` are the relative errors of the means.
    """
    if not first and not second:
        return math.inf
    parts = first**4 / (blocks - 1) + second**4 / (other_blocks - 1)
    return (first**2 + second**2) ** 2 / parts


def student(confidence: float, freedom: float) -> float:
    """Return the two-sided quantile of Student's t, by the Cornish-Fisher expansion.

    ``freedom`` is the number of degrees of freedom.
    """
    normal = NormalDist().inv_cdf((1 + confidence) / 2)
    first = (normal**3 + normal) / 4
    second = (5 * normal**5 + 16 * normal**3 + 3 * normal) / 96
    third = (3 * normal**7 + 19 * normal**5 + 17 * normal**3 - 15 * normal) / 384
    return normal + first / freedom + second / freedom**2 + third / freedom**3
