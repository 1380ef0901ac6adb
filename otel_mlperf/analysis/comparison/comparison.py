"""Comparison of two runs: slower and faster sections, and differences in numbers and parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_mlperf.analysis.comparison.comparison_shapes import (
    Comparison,
    Differing,
    NumberChange,
    TimeChange,
)
from otel_mlperf.analysis.comparison.kernel_changes import find_kernel_changes
from otel_mlperf.analysis.comparison.run_measures import STEP
from otel_mlperf.analysis.steps.mean_estimates import compare_estimates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.comparison.comparison_shapes import (
        RunMeasures,
        TimeMeasures,
        Word,
    )
    from otel_mlperf.analysis.steps.mean_estimates import Interval

CONFIDENCE: Final = 0.995
"""Joint confidence of all intervals: of 200 pairs of equal runs, at most 1 is reported as
different."""
MATTERS: Final = 0.01
"""Minimum relative change: a smaller change is reported as ``same`` even if it is significant."""
FEWEST_CALLS: Final = 3.0
"""Minimum number of calls of a section outside steps from which their spread is meaningful."""
VAGUE: Final = 0.1
"""An insignificant change is ``unclear`` if its interval extends further than this from 0."""


def compare_runs(
    before: RunMeasures, after: RunMeasures, confidence: float = CONFIDENCE
) -> Comparison:
    """Return how ``after`` differs from ``before``: times, numbers, parameters and kernels.

    ``confidence`` is the probability that all confidence intervals contain the true changes.
    """
    (times_before, calls_before), (times_after, calls_after) = _parts(before), _parts(after)
    names = _names(times_before, times_after)
    common = {time.name for time in calls_before} & {time.name for time in calls_after}
    # Bonferroni correction: each row has two intervals, and each may be wrong by chance.
    of_one = 1 - (1 - confidence) / (2 * max(1, len(names) + len(common)))
    first = {time.name: time for time in times_before}
    second = {time.name: time for time in times_after}
    step_ns = first[STEP].mean_ns.value if STEP in first else 0.0
    called = {time.name: time for time in calls_before}
    run_ns = before.numbers.get("duration_ns", 0.0)
    return Comparison(
        before=before,
        after=after,
        confidence=confidence,
        times=[_change(name, first.get(name), second.get(name), of_one, step_ns) for name in names],
        calls=[
            _call_change(called[time.name], time, of_one, run_ns)
            for time in calls_after
            if time.name in common
        ],
        numbers=_numbers(before.numbers, after.numbers),
        differing=_differing(before, after),
        kernels=find_kernel_changes(before.kernels, after.kernels),
        kernels_ns=_kernels_ns(before, after),
    )


def _parts(run: RunMeasures) -> tuple[list[TimeMeasures], list[TimeMeasures]]:
    is_of_steps = bool(run.times) and run.times[0].name == STEP
    return (run.times, run.calls) if is_of_steps else ([], [*run.calls, *run.times])


def _call_change(
    before: TimeMeasures, after: TimeMeasures, confidence: float, run_ns: float
) -> TimeChange:
    mean = compare_estimates(before.mean_ns, after.mean_ns, confidence, FEWEST_CALLS)
    _, word = _judged(None, mean)
    more_ns = after.mean_ns.value - before.mean_ns.value
    return TimeChange(
        name=after.name,
        category=after.category,
        before_ns=before.mean_ns.value,
        after_ns=after.mean_ns.value,
        usual=None,
        mean=mean,
        by="mean",
        word=word,
        # Without the duration of the run the share is unknown: then each change counts.
        share=more_ns * before.steps / run_ns if run_ns else math.copysign(1.0, more_ns),
    )


def _names(before: Sequence[TimeMeasures], after: Sequence[TimeMeasures]) -> list[str]:
    return [*dict.fromkeys(time.name for time in (*after, *before))]


def _change(
    name: str,
    before: TimeMeasures | None,
    after: TimeMeasures | None,
    confidence: float,
    step_ns: float,
) -> TimeChange:
    usual = mean = None
    if before and after:
        usual = compare_estimates(before.usual_ns, after.usual_ns, confidence)
        mean = compare_estimates(before.mean_ns, after.mean_ns, confidence)
    before_ns, after_ns = (time.mean_ns.value if time else None for time in (before, after))
    more_ns = (after_ns or 0.0) - (before_ns or 0.0)
    by, word = _judged(usual, mean)
    if before_ns is None or after_ns is None:  # a missing section costs no time
        matters = abs(more_ns) >= MATTERS * step_ns
        word = ("slower" if before_ns is None else "faster") if matters else "same"
    return TimeChange(
        name=name,
        category=next(time.category for time in (after, before) if time),
        before_ns=before_ns,
        after_ns=after_ns,
        usual=usual,
        mean=mean,
        by=by,
        word=word,
        share=more_ns / step_ns if step_ns else 0.0,
    )


def _judged(usual: Interval | None, mean: Interval | None) -> tuple[Literal["usual", "mean"], Word]:
    """Return which interval decides about a change, and the verdict.

    A significant interval decides; if both are significant, that of the mean. If neither is
    significant, the narrower interval decides. An interval is None if it is unknown.
    """
    known: list[tuple[Literal["usual", "mean"], Interval]] = []
    known += [("mean", mean)] if mean is not None else []
    known += [("usual", usual)] if usual is not None else []
    for by, interval in known:
        if abs(interval.ratio) >= MATTERS and (interval.low > 0 or interval.high < 0):
            return by, "slower" if interval.low > 0 else "faster"
    # If neither shows a significant difference, the narrower interval is more informative.
    known.sort(key=lambda one: one[1].high - one[1].low)
    for by, interval in known:
        return by, "same" if interval.low > -VAGUE and interval.high < VAGUE else "unclear"
    return "mean", "unclear"


def _numbers(before: dict[str, float], after: dict[str, float]) -> list[NumberChange]:
    return [
        NumberChange(name=name, before=before.get(name), after=after.get(name))
        for name in dict.fromkeys((*before, *after))
    ]


def _differing(before: RunMeasures, after: RunMeasures) -> list[Differing]:
    pairs: tuple[tuple[Literal["param", "result", "machine", "last"], Any, Any], ...] = (
        ("param", before.params, after.params),
        ("machine", before.machine, after.machine),
        ("result", before.result, after.result),
        ("last", before.last, after.last),
    )
    return [
        Differing(what=what, name=name, before=first.get(name), after=second.get(name))
        for what, first, second in pairs
        for name in dict.fromkeys((*first, *second))
        if first.get(name) != second.get(name)
        # A machine property that is unknown in one run is not a difference.
        if what != "machine" or None not in (first.get(name), second.get(name))
    ]


def _kernels_ns(before: RunMeasures, after: RunMeasures) -> tuple[float, float] | None:
    if not before.kernels or not after.kernels:
        return None
    first, second = (sum(one.per_step_ns for one in run.kernels) for run in (before, after))
    return first, second
