"""Do long steps come at equal distances, more of them than chance would place there?

Steps at equal distances are a comb: every ``period``-th one from the ``first`` on. Long steps that
come at any time hit a comb of so many teeth as draws without replacement do (hypergeometric); as
many combs are looked at, as often may one be hit by chance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEWEST: Final = 4
"""Long steps from which on their distances are a pattern."""
_REGULAR: Final = 0.7
"""Share of a comb's teeth, from the first long one to the last, that must be long."""
_CHANCE: Final = 0.002
"""By which some comb or other may look like this although the long steps come at any time."""
_MOST: Final = 1_000
"""Long steps that are looked at, the latest: the distances of each to each are counted."""
_TRIED: Final = 100
"""Periods that are tried, those of most pairs."""


class Comb(NamedTuple):
    """Steps at equal distances; numbers of steps, as the program gave them."""

    first: int
    last: int
    period: int
    chance: float
    """Probability of such a one, or a clearer one, where long steps come at any time."""

    def teeth(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these steps are on it."""
        is_within = (numbers >= self.first) & (numbers <= self.last)
        within: NDArray[np.bool_] = is_within & ((numbers - self.first) % self.period == 0)
        return within


def find_comb(numbers: NDArray[np.int64], is_long: NDArray[np.bool_]) -> Comb | None:
    """The comb on which long steps come that is the least likely chance; None: it may well be."""
    known, begin = np.unique(numbers), int(numbers.min())
    stride = int(np.gcd.reduce(np.diff(known))) or 1
    places = np.unique((numbers[is_long] - begin) // stride)
    total = int(known[-1] - begin) // stride + 1
    if not FEWEST <= len(places) <= total // 2:
        return None
    if len(places) > _MOST:
        places = places[-_MOST:]
        total, begin = total - int(places[0]), begin + stride * int(places[0])
        places = places - places[0]
    combs = (_comb_of(places, period, total) for period in _periods(places, total))
    best = min(
        (comb for comb in combs if comb is not None), key=lambda one: one.chance, default=None
    )
    if best is None or best.chance > _CHANCE:
        return None
    first, last = (begin + stride * place for place in (best.first, best.last))
    return Comb(first, last, best.period * stride, best.chance)


def _periods(places: NDArray[np.int64], total: int) -> list[int]:
    """Distances between long steps, near or far, those first that most pairs have."""
    apart = np.subtract.outer(places, places)
    found, pairs = np.unique(apart[(apart > 1) & (apart <= _longest(total))], return_counts=True)
    often = np.argsort(-pairs, kind="stable")[:_TRIED]
    return [int(period) for period in found[often[pairs[often] > 1]]]


def _longest(total: int) -> int:
    """The period of which so many steps have room for the fewest teeth."""
    return (total - 1) // (FEWEST - 1)


def _comb_of(places: NDArray[np.int64], period: int, total: int) -> Comb | None:
    """The comb of that period that most of them are on; None where it has gaps, or too few are."""
    begins = places % period
    counts = np.bincount(begins)
    hits, hit = int(counts.max()), places[begins == counts.argmax()]
    first, last = int(hit[0]), int(hit[-1])
    if hits < FEWEST or hits < _REGULAR * ((last - first) // period + 1):
        return None
    teeth = (total - 1 - first % period) // period + 1
    # Of each period that is short enough there are as many combs as it has steps.
    tried = _longest(total) ** 2 / 2
    return Comb(first, last, period, tried * _chance(total, len(places), teeth, hits))


def _chance(steps: int, long: int, teeth: int, hits: int) -> float:
    """Probability that at least ``hits`` of the ``long`` steps are on a comb of so many teeth.

    The terms of the sum fall ever faster: the first one, and a geometric series for the others.
    """
    falls = (teeth - hits) * (long - hits) / ((hits + 1) * (steps - teeth - long + hits + 1))
    if falls >= 1:
        return 1.0
    log = _ways(teeth, hits) + _ways(steps - teeth, long - hits) - _ways(steps, long)
    return math.exp(log) / (1 - falls)


def _ways(of: int, chosen: int) -> float:
    """The logarithm of the binomial coefficient."""
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)
