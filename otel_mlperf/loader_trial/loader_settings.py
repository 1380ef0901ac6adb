"""DataLoader settings to try, the results of their trials, and the search for the best setting.

Nothing is measured here, because the caller passes the function that measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf.errors import UsageError
from otel_mlperf.quantities import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """DataLoader arguments that a trial varies; other arguments are those of the user's loader."""

    num_workers: int
    prefetch_factor: int | None = None
    """None: use the program's value."""

    @property
    def words(self) -> str:
        """Return the setting as text, e.g. ``2 workers, prefetch 4``."""
        workers = plural(self.num_workers, "worker")
        deeper = self.prefetch_factor
        return workers if deeper is None else f"{workers}, prefetch {deeper}"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Measured throughput, start-up time and memory of one setting."""

    setting: Setting | None
    """None: the loader is not a DataLoader and has no settings."""
    batches: int
    """Number of timed batches."""
    batch_ns: float
    """Time per batch: the median over the turns (timed repetitions)."""
    noise: float
    """Half the range from second fastest to second slowest turn, as a share of ``batch_ns``."""
    samples_per_s: float | None
    first_batch_ns: int
    """Time from creating an iterator to its first batch, including the start of the workers."""
    memory_bytes: int | None = None
    """Memory growth of this process and its workers during the trial; None: not readable."""

    @property
    def batches_per_s(self) -> float:
        """Return the throughput in batches per second; 0 if no time was measured."""
        return 1e9 / self.batch_ns if self.batch_ns else 0.0


class TransformTime(msgspec.Struct, frozen=True, kw_only=True):
    """Calls and mean time of one transform of the dataset."""

    name: str
    calls: int
    batch_ns: float
    """Mean time per batch, summed over all calls in the batch."""


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """Mean cost of a batch, and of its parts, if loaded in this process without workers."""

    batch_ns: float
    items_ns: float
    """Time in ``__getitem__`` or in the dataset's iterator: ``batch_ns`` without ``collate_ns``."""
    collate_ns: float
    transforms: list[TransformTime]
    """Transforms of the dataset; their time is included in ``items_ns``."""


class LoaderAnswer(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="loader/1"):
    """Result of a loader benchmark: throughput, cost breakdown, and best setting."""

    target: str
    kind: str
    """Class of the loader."""
    dataset: str | None
    epoch_batches: int | None
    """Number of batches per epoch; None: the loader has no length."""
    batch_samples: int | None
    batch_bytes: int
    """Bytes of tensors and arrays in the first batch."""
    cpus: int
    now: Setting | None
    """The program's setting; None: the loader is not a DataLoader."""
    trials: list[Trial]
    inside: Inside | None
    best: Setting | None
    line: str | None
    """The best setting as code that can be pasted."""
    gain: float | None
    """Speed-up of ``best`` over the program's setting; None: the loader is not a DataLoader."""
    notes: list[str] = []


_MIN_SPEEDUP: Final = 1.3
"""Minimum speed-up from doubling the workers that justifies doubling them again.

This also applies beyond the number of CPUs.
"""
_MAX_WORKERS_PER_CPU: Final = 8
"""Maximum number of workers per CPU; more than one helps if workers wait for a disk or network."""
_MAX_WORKERS: Final = 64
_MIN_DIFFERENCE: Final = 0.05
"""Relative differences up to this value count as noise, however small the measured noise is."""
_PREFETCH: Final = 4


def usual_counts(cpus: int) -> list[int]:
    """Return the default worker counts: 0, the powers of two up to ``cpus``, and ``cpus``."""
    counts = [0, 1]
    while counts[-1] * 2 <= cpus:
        counts.append(counts[-1] * 2)
    return sorted({*counts, cpus})


def parse_counts(text: str) -> list[int]:
    """Parse worker counts such as ``0,2,4``.

    Raises:
        UsageError: a count is not a whole number of at least 0.
    """
    words = [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not (word.isascii() and word.isdigit())]
    if wrong:
        raise UsageError(
            f"--workers {text}: {wrong[0]!r} is not a number of workers; expected e.g. 0,2,4"
        )
    return [int(word) for word in words]


def try_settings(
    measure: Callable[[Setting], Trial], counts: Sequence[int] | None, now: Setting, cpus: int
) -> list[Trial]:
    """Try each number of workers; return all trials.

    If the best trial has workers, their number is also tried with deeper prefetching, unless
    ``now`` already prefetches as deeply.

    Args:
        measure: runs the trial of one setting.
        counts: numbers of workers to try; None for the usual numbers, and further doubled numbers
            as long as doubling makes the loader faster.
        now: setting of the user's own loader; its number of workers is always tried.
        cpus: CPUs that the workers may use.
    """
    wanted = sorted({*(usual_counts(cpus) if counts is None else counts), now.num_workers})
    trials = [measure(Setting(num_workers=count)) for count in wanted]
    if counts is None:
        _double_workers(measure, trials, min(_MAX_WORKERS, _MAX_WORKERS_PER_CPU * cpus))
    best = find_best(trials)
    if best.setting is not None and best.setting.num_workers and now.prefetch_factor != _PREFETCH:
        workers = best.setting.num_workers
        trials.append(measure(Setting(num_workers=workers, prefetch_factor=_PREFETCH)))
    return trials


def _double_workers(
    measure: Callable[[Setting], Trial], trials: list[Trial], max_workers: int
) -> None:
    while (count := 2 * _workers(trials[-1])) <= max_workers:
        before, last = trials[-2:]
        if before.batch_ns < _MIN_SPEEDUP * last.batch_ns:
            return
        trials.append(measure(Setting(num_workers=count)))


def find_best(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the fewest workers among those that are as fast as the fastest."""
    fastest = min(trials, key=lambda trial: trial.batch_ns)
    as_fast = [trial for trial in trials if is_as_fast(trial, fastest)]
    return min(as_fast, key=_needs)


def is_as_fast(trial: Trial, fastest: Trial) -> bool:
    """Return whether ``trial`` is as fast as ``fastest``, within the noise of both."""
    noise = max(_MIN_DIFFERENCE, trial.noise, fastest.noise)
    return trial.batch_ns <= fastest.batch_ns * (1 + noise)


def _workers(trial: Trial) -> int:
    return trial.setting.num_workers if trial.setting else 0


def _needs(trial: Trial) -> tuple[int, int]:
    return _workers(trial), (trial.setting.prefetch_factor or 0) if trial.setting else 0


def pasted(best: Setting) -> str:
    """Return the setting as a ``DataLoader(...)`` call that can be pasted."""
    words = [f"num_workers={best.num_workers}"]
    if best.num_workers:
        if best.prefetch_factor is not None:
            words.append(f"prefetch_factor={best.prefetch_factor}")
        words.append("persistent_workers=True")
    return f"DataLoader(..., {', '.join(words)})"
