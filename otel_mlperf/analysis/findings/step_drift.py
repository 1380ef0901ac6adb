"""Finding of step drift: step times that increase over the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.findings.cpu_shares import waits_of_steps
from otel_mlperf.analysis.steps.mean_estimates import TRIMMED, compare_estimates, estimate_mean
from otel_mlperf.analysis.steps.step_series import StepSeries
from otel_mlperf.analysis.steps.step_shares import PROFILED
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_PROFILED: Final = """SELECT min(number), max(number) FROM steps
    WHERE phase = $phase AND kept = $profiled"""
_MIN_STEPS: Final = 60
_CONFIDENCE: Final = 0.999
_MIN_SLOWDOWN: Final = 0.1
"""Slowdown that the confidence interval must exceed, because a shared machine varies as much."""
_START_DIVISOR: Final = 12
_AHEAD: Final = 64
"""Number of first steps to ignore with a GPU, because a host may run ahead by as many steps. It
queues about a thousand launches, and the smallest training steps have 16. Those steps last as long
as the host works, later ones as long as the GPU works."""
_MAX_WAITED: Final = 0.9
"""Share of the time in CPU waits above which the remaining time is not meaningful."""


def find_step_drift(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if the last third of the steps is significantly longer than the first.

    Drift that CPU waits alone explain is excluded, because another finding covers it.
    """
    row, series = row_of("step_drift"), _series(numbers)
    if series is None:
        return []
    third = len(series.numbers) // 3
    early, late = series.durations_ns[:third], series.durations_ns[-third:]
    first, last = estimate_mean(early, TRIMMED), estimate_mean(late, TRIMMED)
    change = compare_estimates(first, last, _CONFIDENCE)
    if change is None or change.low <= _MIN_SLOWDOWN or not row.holds(1 + change.ratio):
        return []
    own = (1 + change.ratio) * _wait_correction(numbers, series, third)
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
            # Inputs may have grown as well: then there is no gain.
            gain=Gain(low=0.0, high=max(0.0, 1 - _start_ns(series, first.value) / whole)),
            command=f"otel-mlperf show {numbers.summary.short_id}",
        )
    ]


def _start_ns(series: StepSeries, early_ns: float) -> float:
    """Return the step time in ns at the start of the run, before any drift.

    The result is at most ``early_ns``, the mean of the first third: the very first steps might be
    slower, because caches and clocks are not warm.
    """
    begin = estimate_mean(series.durations_ns[: len(series.numbers) // _START_DIVISOR], TRIMMED)
    return min(early_ns, begin.value)


def _wait_correction(numbers: RunNumbers, series: StepSeries, third: int) -> float:
    """Return the factor that removes the effect of CPU waits from the slowdown of late steps.

    The result is 1.0 if waits are unknown, 0.0 if they exceed ``_MAX_WAITED``. ``third`` is a third
    of the steps.

    The factor is cubed, because threads that compute together progress only while all have a CPU,
    and frequent synchronization multiplies the loss. Two threads with half of the CPUs each took
    5.5 times as long for a step of 42 ms.
    """
    early = waits_of_steps(numbers, *_steps(series, slice(third)))
    late = waits_of_steps(numbers, *_steps(series, slice(len(series.numbers) - third, None)))
    if early is None or late is None:
        return 1.0
    if max(early, late) > _MAX_WAITED:
        return 0.0
    return ((1 - late) / (1 - early)) ** 3


def _series(numbers: RunNumbers) -> StepSeries | None:
    """Return the steps of the main phase to evaluate; None if these are too few.

    With a GPU, steps in which the host runs ahead and steps near profiler windows are excluded.
    """
    series = numbers.steps
    if series is None:
        return None
    if numbers.uses_gpu:
        series = _outside_windows(numbers, _from(series, slice(_AHEAD, None)))
    return series if len(series.numbers) >= _MIN_STEPS else None


def _outside_windows(numbers: RunNumbers, series: StepSeries) -> StepSeries:
    """Return the steps after the last profiler window or, if too few, before the first window.

    Steps between windows are excluded, because CUPTI continues to observe each launch after a
    window: steps of 27 ms took 33 ms on an H100.
    """
    steps = numbers.summary.steps
    ((first, last),) = numbers.store.rows(
        _PROFILED, phase=steps.phase if steps else "", profiled=PROFILED
    )
    if first is None:
        return series
    behind = _from(series, series.numbers > last)
    if len(behind.numbers) >= _MIN_STEPS:
        return behind
    return _from(series, series.numbers < first)


def _from(series: StepSeries, chosen: slice | NDArray[np.bool_]) -> StepSeries:
    return StepSeries(
        series.numbers[chosen],
        series.durations_ns[chosen],
        series.own_ns[chosen],
        series.elements[chosen],
    )


def _steps(series: StepSeries, chosen: slice) -> tuple[int, int]:
    numbers = series.numbers[chosen]
    return int(numbers[0]), int(numbers[-1])
