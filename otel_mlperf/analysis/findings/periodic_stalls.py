"""Finding of slow steps that recur periodically, and of the section that is longer in these steps.

A step is slow if it exceeds a threshold. Several thresholds are tried, and the one with the most
significant pattern is used:

- half-way between the median and the longest few steps, for stalls far beyond the noise
- multiples of the spread of the shorter half of the steps, for stalls that hardly exceed the noise

If a GPU sets the pace, the host runs ahead of the GPU. A stall of such a host contains GPU work
that has to be done in any case. The time of that work is not lost.

A comb is a set of steps at equal distances: every ``period``-th step, starting with ``first``. If
slow steps are random, the number of slow steps on a comb has a hypergeometric distribution (draws
without replacement). The resulting probability is multiplied by the number of combs tried.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.findings.gpu_busy import max_possible_gain
from otel_mlperf.analysis.findings.line_causes import cause_of
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.findings.stack_lines import most_uncovered
from otel_mlperf.analysis.steps.step_shares import UNTRACKED, shown
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_series import StepSeries


FEWEST: Final = 4
"""Minimum number of slow steps on a comb."""
_REGULAR: Final = 0.7
"""Minimum share of slow steps among a comb's steps, from the first slow one to the last."""
_CHANCE: Final = 0.002
"""Maximum probability that some comb fits as well if slow steps are random."""
_MAX_SLOW_STEPS: Final = 1_000
"""Maximum number of slow steps considered (the latest ones), because all pairs are compared."""
_MAX_PERIODS: Final = 100


class Comb(NamedTuple):
    """Steps at equal distances, by the step numbers that the user's program reports."""

    first: int
    last: int
    period: int
    chance: float
    """Estimated probability that some comb fits as well if slow steps are random; may exceed 1."""

    def teeth(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of ``numbers`` (step numbers): True for steps on the comb."""
        is_within = (numbers >= self.first) & (numbers <= self.last)
        within: NDArray[np.bool_] = is_within & ((numbers - self.first) % self.period == 0)
        return within


def find_comb(numbers: NDArray[np.int64], is_long: NDArray[np.bool_]) -> Comb | None:
    """Return the most significant comb of slow steps, or None if chance explains it.

    ``is_long`` is True for the slow steps among ``numbers``.
    """
    known, begin = np.unique(numbers), int(numbers.min())
    stride = int(np.gcd.reduce(np.diff(known))) or 1
    places = np.unique((numbers[is_long] - begin) // stride)
    total = int(known[-1] - begin) // stride + 1
    if not FEWEST <= len(places) <= total // 2:
        return None
    if len(places) > _MAX_SLOW_STEPS:
        places = places[-_MAX_SLOW_STEPS:]
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
    """Return the distances between slow steps that occur repeatedly, most frequent first.

    ``places`` are the indices of the slow steps among ``total`` steps.
    """
    apart = np.subtract.outer(places, places)
    found, pairs = np.unique(apart[(apart > 1) & (apart <= _longest(total))], return_counts=True)
    often = np.argsort(-pairs, kind="stable")[:_MAX_PERIODS]
    return [int(period) for period in found[often[pairs[often] > 1]]]


def _longest(total: int) -> int:
    return (total - 1) // (FEWEST - 1)


def _comb_of(places: NDArray[np.int64], period: int, total: int) -> Comb | None:
    """Return the best-fitting comb of ``period``; None if its slow steps are too few or irregular.

    ``places`` are the indices of the slow steps among ``total`` steps.
    """
    begins = places % period
    counts = np.bincount(begins)
    hits, hit = int(counts.max()), places[begins == counts.argmax()]
    first, last = int(hit[0]), int(hit[-1])
    if hits < FEWEST or hits < _REGULAR * ((last - first) // period + 1):
        return None
    teeth = (total - 1 - first % period) // period + 1
    # A period of p steps has p combs (phases), summed here over all possible periods.
    tried = _longest(total) ** 2 / 2
    return Comb(first, last, period, tried * _chance(total, len(places), teeth, hits))


def _chance(steps: int, long: int, teeth: int, hits: int) -> float:
    """Return the probability that at least ``hits`` of ``long`` random steps are on a comb.

    The comb has ``teeth`` of all ``steps``. Only the first term of the sum is computed. A geometric
    series bounds the other terms, because the ratio of successive terms decreases.
    """
    falls = (teeth - hits) * (long - hits) / ((hits + 1) * (steps - teeth - long + hits + 1))
    if falls >= 1:
        return 1.0
    log = _ways(teeth, hits) + _ways(steps - teeth, long - hits) - _ways(steps, long)
    return math.exp(log) / (1 - falls)


def _ways(of: int, chosen: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)


_MIN_STEPS: Final = 60
_LONG: Final = 1.3
_LONGEST: Final = 1.5
"""Minimum of the threshold between median and longest steps, in multiples of the median."""
_EXCESS_LIMITS: Final = ((0.3, 2.0), (0.25, 1.5))
"""Other thresholds as excess over the median: the larger of a fraction of the median and a number
of standard deviations of the shorter half."""
_DEVIATION: Final = 0.16
"""Quantile that is one standard deviation below the median."""
_WARN_FROM_SHARE: Final = 0.1
"""Lost share of the steps' time from which the finding is a warning, in any section."""
_MIN_EXCESS_NS: Final = 1_000_000
"""Minimum excess of a stall if its share is smaller, because very short steps have other costs."""
_LOST: Final = "; only {share:.1%} is lost, because the GPU works in the meantime"
_MAX_LOST: Final = 0.9
"""Fraction of the stall time from which the summary does not report the lost share separately."""
_SURE: Final = 2.0
_MEDIAN_ERROR: Final = 1.2533
"""Standard error of a median in units of that of a mean: the square root of π/2."""
_QUARTILES: Final = 1.349
"""Interquartile range of a normal distribution, in standard deviations."""
_ELSEWHERE: Final = (
    names.DATA_LOADING, names.GARBAGE_COLLECTION, names.COMPILE, names.CHECKPOINT,
)  # fmt: skip
"""Categories that are periodic for good reason and have their own findings."""


@once_a_run
def find_periodic_stall(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if steps at equal distances are far longer than the other steps."""
    row, series = row_of("periodic_stall"), numbers.steps
    comb = find_stalls(series) if series is not None else None
    if series is None or comb is None:
        return []
    stalls = comb.teeth(series.numbers)
    usual, stall = float(np.median(series.durations_ns)), float(series.durations_ns[stalls].mean())
    stalled_ns = float((series.durations_ns[stalls] - usual).sum())
    caught_up_ns = _caught_up_ns(series, comb) if numbers.uses_gpu else 0.0
    all_ns = float(series.durations_ns.sum())
    share = min(max(0.0, stalled_ns - caught_up_ns) / all_ns, max_possible_gain(numbers))
    section, is_elsewhere = _longer_section(numbers, series, stalls)
    is_small = share < _WARN_FROM_SHARE
    if stall < _LONG * usual or not row.holds(share):
        return []
    if is_small and (is_elsewhere or stall - usual < _MIN_EXCESS_NS):
        return []
    costliest = most_uncovered(numbers) if section == UNTRACKED else None
    cause = cause_of(costliest.call, has_gpu=numbers.uses_gpu) if costliest else None
    shown_as = "untracked time" if section == UNTRACKED else section
    stalled_share = stalled_ns / all_ns
    fields = {
        "period": comb.period,
        "times": stall / usual,
        "section": shown_as,
        "value": stalled_share,
    }
    lost = _LOST.format(share=share) if share < _MAX_LOST * stalled_share else ""
    last = int(series.numbers[stalls].max())
    return [
        Finding(
            id=row.id,
            severity="info" if is_small else row.severity,
            summary=row.summary.format(**fields) + lost + (costliest.words if costliest else ""),
            action=(cause.action if cause else "") or row.action.format(**fields),
            evidence={
                "share": stalled_share,
                "lost_share": share,
                "period": float(comb.period),
                "stalls": float(stalls.sum()),
                "usual_ns": usual,
                "stall_ns": stall,
                "chance": comb.chance,
            },
            where=Where(section=section, steps=(comb.first, comb.last)),
            gain=Gain(low=share / 2, high=share).narrowed(),
            command=f"otel-mlperf show {numbers.summary.short_id} --step {last}",
        )
    ]


def find_stalls(series: StepSeries) -> Comb | None:
    """Return the most significant comb of slow steps; None if none is significant."""
    if len(series.numbers) < _MIN_STEPS:
        return None
    combs = (find_comb(series.numbers, series.durations_ns > ns) for ns in _limits(series))
    known = (comb for comb in combs if comb is not None)
    return min(known, key=lambda one: one.chance, default=None)


def _caught_up_ns(series: StepSeries, comb: Comb) -> float:
    """Return the time in ns by which steps after stalls are shorter than steps before stalls.

    If a host runs ahead of its GPU, a stall contains GPU work that has to be done in any case.
    After the stall, some steps take only as long as their launches, until enough work is queued.
    Each position after a stall counts with the median of its steps, up to the first position at
    which steps are not significantly shorter.
    """
    behind = series.numbers - comb.first
    within = (behind >= 0) & (series.numbers < comb.last + comb.period)
    place, times = behind[within] % comb.period, series.durations_ns[within]
    full = float(np.median(times[place >= comb.period / 2]))
    order = np.argsort(place, kind="stable")
    caught_up = 0.0
    for at_place in np.split(times[order], np.flatnonzero(np.diff(place[order])) + 1)[1:]:
        shorter = full - float(np.median(at_place))
        if not shorter > _SURE * _error_of_median(at_place):
            break
        caught_up += shorter * len(at_place)
    return caught_up


def _error_of_median(values: NDArray[np.float64]) -> float:
    low, high = (float(value) for value in np.quantile(values, (0.25, 0.75)))
    return _MEDIAN_ERROR * (high - low) / _QUARTILES / math.sqrt(len(values))


def _limits(series: StepSeries) -> list[float]:
    times = series.durations_ns
    below, usual = (float(value) for value in np.quantile(times, (_DEVIATION, 0.5)))
    longest = float(np.partition(times, -FEWEST)[-FEWEST])
    apart = max(_LONGEST * usual, (usual + longest) / 2)
    return [
        apart,
        *(usual + max(part * usual, many * (usual - below)) for part, many in _EXCESS_LIMITS),
    ]


def _longer_section(
    numbers: RunNumbers, series: StepSeries, stalls: NDArray[np.bool_]
) -> tuple[str, bool]:
    """Return the section with most excess time in stalls, and whether other findings cover it."""
    more = {one.name: _more_ns(one.own_ns, stalls) for one in numbers.sections}
    more[UNTRACKED] = _more_ns(series.own_ns, stalls)
    most = max(more, key=lambda name: more[name])
    kinds = {one.name: one.category for one in numbers.sections}
    return shown(most), kinds.get(most) in _ELSEWHERE


def _more_ns(own_ns: NDArray[np.float64], stalls: NDArray[np.bool_]) -> float:
    return float(own_ns[stalls].mean() - np.median(own_ns))
