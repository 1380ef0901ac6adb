"""Search for the best setting of a loader: settings to try, and the choice of the best.

Nothing is measured here: the caller passes the function that measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.errors import UsageError
from otel_mlperf.loader_trial.trial_shapes import Setting, Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WORTH: Final = 1.3
"""Minimum speed-up of the last doubling, to double the workers again, even beyond the CPUs."""
_BEYOND: Final = 8
"""Maximum workers per CPU: they may only wait for a disk or a network."""
_MOST: Final = 64
_LEAST_GAIN: Final = 0.05
"""Minimum difference between settings, however quiet the machine is."""
_PREFETCH: Final = 4


def usual_counts(cpus: int) -> list[int]:
    """Return 0, 1, 2, 4 … and the number of CPUs."""
    counts = [0, 1]
    while counts[-1] * 2 <= cpus:
        counts.append(counts[-1] * 2)
    return sorted({*counts, cpus})


def parse_counts(text: str) -> list[int]:
    """Parse worker counts such as ``0,2,4``.

    Raises:
        UsageError: one is not a whole number of at least 0.
    """
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not (word.isascii() and word.isdigit())]
    if wrong:
        raise UsageError(
            f"--workers {text}: {wrong[0]!r} is no number of workers; expected e.g. 0,2,4"
        )
    return [int(word) for word in words]


def try_settings(
    measure: Callable[[Setting], Trial], counts: Sequence[int] | None, now: Setting, cpus: int
) -> list[Trial]:
    """Return a trial for each number of workers, and one with deeper prefetching for the best.

    Args:
        measure: tries one setting.
        counts: the numbers to try; None: the usual ones, and more while that is worthwhile.
        now: the program's setting; it is tried in any case.
        cpus: CPUs that the workers may use.
    """
    wanted = sorted({*(usual_counts(cpus) if counts is None else counts), now.num_workers})
    trials = [measure(Setting(num_workers=count)) for count in wanted]
    if counts is None:
        _go_on(measure, trials, min(_MOST, _BEYOND * cpus))
    best = find_best(trials)
    if best.setting is not None and best.setting.num_workers and now.prefetch_factor != _PREFETCH:
        workers = best.setting.num_workers
        trials.append(measure(Setting(num_workers=workers, prefetch_factor=_PREFETCH)))
    return trials


def _go_on(measure: Callable[[Setting], Trial], trials: list[Trial], most: int) -> None:
    while (count := 2 * _workers(trials[-1])) <= most:
        before, last = trials[-2:]
        if before.batch_ns < _WORTH * last.batch_ns:
            return
        trials.append(measure(Setting(num_workers=count)))


def find_best(trials: Sequence[Trial]) -> Trial:
    """Return the cheapest of the trials that are as fast as the fastest, within the noise."""
    fastest = min(trials, key=lambda trial: trial.batch_ns)
    as_fast = [trial for trial in trials if is_as_fast(trial, fastest)]
    return min(as_fast, key=_needs)


def is_as_fast(trial: Trial, fastest: Trial) -> bool:
    """Return whether the difference is within the noise of both trials."""
    noise = max(_LEAST_GAIN, trial.noise, fastest.noise)
    return trial.batch_ns <= fastest.batch_ns * (1 + noise)


def _workers(trial: Trial) -> int:
    return trial.setting.num_workers if trial.setting else 0


def _needs(trial: Trial) -> tuple[int, int]:
    return _workers(trial), (trial.setting.prefetch_factor or 0) if trial.setting else 0


def pasted(best: Setting) -> str:
    """Return the setting as a call."""
    words = [f"num_workers={best.num_workers}"]
    if best.num_workers:
        if best.prefetch_factor is not None:
            words.append(f"prefetch_factor={best.prefetch_factor}")
        words.append("persistent_workers=True")
    return f"DataLoader(..., {', '.join(words)})"
