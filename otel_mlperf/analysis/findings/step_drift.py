"""Do steps become longer with time?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.findings.cpu_waits import waits_of_steps
from otel_mlperf.analysis.steps.estimates import TRIMMED, compare_estimates, estimate_mean
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_series import StepSeries

_FEWEST: Final = 60
"""Steps from which on a trend is one."""
_CONFIDENCE: Final = 0.999
_LEAST_SURE: Final = 0.1
"""By which late steps must surely take longer: a machine that others share is that uneven."""
_BEGIN: Final = 12
"""Part of the steps, one in so many, that has hardly grown: five steps at least."""
_MOST_WAITED: Final = 0.9
"""Share of the time in which threads wait for CPUs, beyond which the rest tells nothing."""


def find_step_drift(numbers: RunNumbers) -> list[Finding]:
    """One, if the last third of the steps surely takes longer than the first.

    Not where it merely waits longer for CPUs: that is a finding of its own.
    """
    row, series = row_of("step_drift"), _series(numbers)
    if series is None:
        return []
    third = len(series.numbers) // 3
    early, late = series.durations_ns[:third], series.durations_ns[-third:]
    first, last = estimate_mean(early, TRIMMED), estimate_mean(late, TRIMMED)
    change = compare_estimates(first, last, _CONFIDENCE)
    if change is None or change.low <= _LEAST_SURE or not row.holds(1 + change.ratio):
        return []
    own = (1 + change.ratio) * _more_pace(numbers, series, third)
    if not row.holds(own):
        return []
    whole = float(series.durations_ns.mean())
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=1 + change.ratio),
            action=row.action,
            evidence={
                "early_ns": first.value,
                "late_ns": last.value,
                "low": 1 + change.low,
                "high": 1 + change.high,
                "without_cpu_waits": own,
            },
            where=Where(steps=_steps(series, slice(len(series.numbers) - third, None))),
            # Inputs may have grown as well: then nothing is won.
            gain=Gain(low=0.0, high=max(0.0, 1 - _at_begin(series, first.value) / whole)),
            command=f"otel-mlperf show {numbers.summary.short_id}",
        )
    ]


def _at_begin(series: StepSeries, early_ns: float) -> float:
    """What a step took before anything had grown, ns: the first third has grown by itself.

    Where the very first steps are longer, caches and clocks were not warm yet.
    """
    begin = estimate_mean(series.durations_ns[: len(series.numbers) // _BEGIN], TRIMMED)
    return min(early_ns, begin.value)


def _more_pace(numbers: RunNumbers, series: StepSeries, third: int) -> float:
    """By what late steps got on better or worse than early ones, for want of a CPU; 0.0: not known.

    Cubed: threads that compute together get on while all have a CPU, and more is lost where they
    meet often. Two that had half of the CPUs each took 5.5 times as long for a step of 42 ms.
    """
    early = waits_of_steps(numbers, *_steps(series, slice(third)))
    late = waits_of_steps(numbers, *_steps(series, slice(len(series.numbers) - third, None)))
    if early is None or late is None:
        return 1.0
    if max(early, late) > _MOST_WAITED:
        return 0.0
    return ((1 - late) / (1 - early)) ** 3


def _series(numbers: RunNumbers) -> StepSeries | None:
    """The steps of the main phase; None where they are too few."""
    series = numbers.steps
    return series if series is not None and len(series.numbers) >= _FEWEST else None


def _steps(series: StepSeries, chosen: slice) -> tuple[int, int]:
    numbers = series.numbers[chosen]
    return int(numbers[0]), int(numbers[-1])
