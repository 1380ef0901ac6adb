"""Do steps become longer with time, or is one in so many longer than the others?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.analysis.findings.cpu_waits import waits_of_steps
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.steps.estimates import TRIMMED, compare_estimates, estimate_mean
from otel_mlperf.analysis.steps.step_shares import NOT_IN_A_SPAN, shown
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_series import StepSeries

_FEWEST: Final = 60
"""Steps from which on a trend or a pattern is one."""
_CONFIDENCE: Final = 0.999
_LEAST_SURE: Final = 0.1
"""By which late steps must surely take longer: a machine that others share is that uneven."""
_MOST_WAITED: Final = 0.9
"""Share of the time in which threads wait for CPUs, beyond which the rest tells nothing."""
_LONG: Final = 1.5
"""Times the median, from which on a step is a stall."""
_FEWEST_STALLS: Final = 4
_REGULAR: Final = 0.7
"""Share of the distances between stalls that must be the same one."""


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
            gain=Gain(low=0.0, high=max(0.0, 1 - first.value / whole)),
            command=f"otel-mlperf show {numbers.summary.short_id}",
        )
    ]


def _more_pace(numbers: RunNumbers, series: StepSeries, third: int) -> float:
    """By what late steps got on better or worse than early ones, for want of a CPU; 0.0: not known.

    Squared: two threads that compute together get on while both have a CPU.
    """
    early = waits_of_steps(numbers, *_steps(series, slice(third)))
    late = waits_of_steps(numbers, *_steps(series, slice(len(series.numbers) - third, None)))
    if early is None or late is None:
        return 1.0
    if max(early, late) > _MOST_WAITED:
        return 0.0
    return ((1 - late) / (1 - early)) ** 2


@once_a_run
def find_periodic_stall(numbers: RunNumbers) -> list[Finding]:
    """One, if every so many steps one is far longer than the others."""
    row, series = row_of("periodic_stall"), _series(numbers)
    if series is None:
        return []
    usual = float(np.median(series.durations_ns))
    stalls = _find_stalls(series.durations_ns, usual)
    excess = float((series.durations_ns[stalls] - usual).sum())
    share = excess / float(series.durations_ns.sum())
    period = _find_period(series.numbers[stalls])
    if period is None or not row.holds(share):
        return []
    section, last = _longer_section(numbers, series, stalls), stalls[-1]
    times = float(series.durations_ns[stalls].mean()) / usual
    words = {"period": period, "times": times, "section": section, "value": share}
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(**words),
            action=row.action.format(**words),
            evidence={
                "share": share,
                "period": float(period),
                "stalls": float(len(stalls)),
                "usual_ns": usual,
                "stall_ns": times * usual,
            },
            where=Where(section=section, steps=_steps(series, stalls)),
            gain=Gain(low=share / 2, high=share),
            command=f"otel-mlperf show {numbers.summary.short_id} --step {series.numbers[last]}",
        )
    ]


def _series(numbers: RunNumbers) -> StepSeries | None:
    """The steps of the main phase; None where they are too few."""
    series = numbers.steps
    return series if series is not None and len(series.numbers) >= _FEWEST else None


def _find_stalls(durations_ns: NDArray[np.float64], usual_ns: float) -> NDArray[np.intp]:
    """The steps that are nearer to the longest few than to the usual one.

    What the machine adds to a step now and then is shorter, and would break the pattern.
    """
    longest = float(np.partition(durations_ns, -_FEWEST_STALLS)[-_FEWEST_STALLS])
    return np.flatnonzero(durations_ns > max(_LONG * usual_ns, (usual_ns + longest) / 2))


def _find_period(stalled: NDArray[np.int64]) -> int | None:
    """The distance at which most of them follow each other; None where there is none."""
    distances = np.diff(stalled)
    if len(stalled) < _FEWEST_STALLS:
        return None
    found, counts = np.unique(distances, return_counts=True)
    most = int(counts.argmax())
    period = int(found[most])
    return period if period > 1 and counts[most] >= _REGULAR * len(distances) else None


def _longer_section(numbers: RunNumbers, series: StepSeries, stalls: NDArray[np.intp]) -> str:
    """Where most of what these steps take longer is."""
    more = {shown(section.name): _more_ns(section.own_ns, stalls) for section in numbers.sections}
    more[NOT_IN_A_SPAN] = _more_ns(series.own_ns, stalls)
    return max(more, key=lambda name: more[name])


def _more_ns(own_ns: NDArray[np.float64], stalls: NDArray[np.intp]) -> float:
    return float(own_ns[stalls].mean() - np.median(own_ns))


def _steps(series: StepSeries, chosen: slice | NDArray[np.intp]) -> tuple[int, int]:
    numbers = series.numbers[chosen]
    return int(numbers[0]), int(numbers[-1])
