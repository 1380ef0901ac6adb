"""Settings of a loader: the results of their trials, and the search for the best one.

Nothing is measured here: the caller passes the function that measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf.errors import UsageError
from otel_mlperf.quantities import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """DataLoader arguments that are varied; other arguments remain the program's."""

    num_workers: int
    prefetch_factor: int | None = None
    """None: the program's value."""

    @property
    def words(self) -> str:
        """Return ``2 workers, prefetch 4``."""
        workers = plural(self.num_workers, "worker")
        deeper = self.prefetch_factor
        return workers if deeper is None else f"{workers}, prefetch {deeper}"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one setting, after its workers have started."""

    setting: Setting | None
    """None: it is not a DataLoader, and has no setting."""
    batches: int
    """Number of timed batches."""
    batch_ns: float
    """Time between batches: the median of the turns."""
    noise: float
    """Half the range from the second fastest to the second slowest turn, as a share."""
    samples_per_s: float | None
    first_batch_ns: int
    """Time from creating an iterator to its first batch: the start-up time of workers."""
    memory_bytes: int | None = None
    """Additional memory of this process and its workers; None: not readable."""

    @property
    def batches_per_s(self) -> float:
        """Return the throughput in batches."""
        return 1e9 / self.batch_ns if self.batch_ns else 0.0


class TransformTime(msgspec.Struct, frozen=True, kw_only=True):
    """One transform of the dataset."""

    name: str
    calls: int
    batch_ns: float
    """Mean time of all its calls in a batch."""


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a batch without workers, in the same process."""

    batch_ns: float
    items_ns: float
    """Time in ``__getitem__``, or in the dataset's iterator."""
    collate_ns: float
    transforms: list[TransformTime]
    """Transforms, whose time is a part of the items'."""


class LoaderAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="loader/1"):
    """Result of a loader benchmark: throughput, cost breakdown, and best setting."""

    target: str
    kind: str
    """Class of the loader."""
    dataset: str | None
    epoch_batches: int | None
    """None: the loader has no length."""
    batch_samples: int | None
    batch_bytes: int
    """Bytes of tensors and arrays in the first batch."""
    cpus: int
    now: Setting | None
    """The program's setting."""
    trials: list[Trial]
    inside: Inside | None
    best: Setting | None
    line: str | None
    """The best setting as code, to be pasted."""
    gain: float | None
    """Speed-up of the best setting over the current one."""
    notes: list[str] = []


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
