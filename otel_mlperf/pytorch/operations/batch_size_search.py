"""Batch size search: the largest batch size that fits, and the fastest one.

The program's own step is called with one size after the other, smallest first. A size that runs
out of memory ends the search: its memory is released before the next line of the program runs.
"""

from __future__ import annotations

import gc
import operator
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.recorder.core.used_so_far import loaded_cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_WORDS: Final = ("out of memory", "not enough memory", "can't allocate memory", "_ALLOC_FAILED")
"""Parts of the message of a RuntimeError: of CUDA and its libraries, and CPU allocators."""
_HEAD: Final = "batch size   samples/s      ± %   s/step       peak"


@dataclass(frozen=True, kw_only=True)
class BatchSizeTrial:
    """Result of one batch size."""

    size: int
    fits: bool
    samples_per_s: float | None = None
    """Size ÷ median time of a step; None: it does not fit."""
    step_s: float | None = None
    """Median of the timed steps, seconds."""
    noise_ratio: float | None = None
    """Half the range of the timed steps ÷ their median: smaller differences are not significant."""
    peak_bytes: int | None = None
    """Peak allocated by PyTorch's CUDA allocator; None: no CUDA, or a size before had more."""
    error: str = ""
    """Error message when the memory ran out."""


@dataclass(frozen=True)
class BatchSizes:
    """Results of a batch size search, ascending by size; printed as a table."""

    trials: Sequence[BatchSizeTrial]

    @property
    def largest(self) -> int | None:
        """The largest size that fits; None: none does."""
        return max((trial.size for trial in self.trials if trial.fits), default=None)

    @property
    def best(self) -> int | None:
        """The size with the most samples per second; None: none fits."""
        fastest = self._fastest()
        return fastest.size if fastest is not None else None

    @property
    def as_good(self) -> list[int]:
        """Sizes that are not slower than the best one by more than the noise of both."""
        fastest = self._fastest()
        return [trial.size for trial in self.trials if fastest and _is_as_good(trial, fastest)]

    def _fastest(self) -> BatchSizeTrial | None:
        fitting = [trial for trial in self.trials if trial.fits]
        return max(fitting, key=lambda trial: trial.samples_per_s or 0.0, default=None)

    def __str__(self) -> str:
        lines = [_HEAD, *map(_line, self.trials)]
        if self.best is None:
            return "\n".join([*lines, "no batch size fits"])
        others = [str(size) for size in self.as_good if size != self.best]
        equal = f" (within the noise: {', '.join(others)})" if others else ""
        return "\n".join([*lines, f"largest {self.largest}, fastest {self.best}{equal}"])


def find_batch_size(
    step: Callable[[int], object],
    sizes: Iterable[int],
    *,
    repeats: int = 5,
) -> BatchSizes:
    """Find the largest batch size that fits into memory, and the fastest one.

    ::

        sizes = om.find_batch_size(lambda size: train_step(batch_of(size)), [8, 16, 32, 64])
        print(sizes)
        loader = DataLoader(data, batch_size=sizes.best)

    Each size is called once without being timed, then ``repeats`` times. The smallest comes first.
    After a size that runs out of memory no larger one is tried, its memory is freed, CUDA's cache
    too, and the program continues. Any other exception of ``step`` is the program's and is passed
    on.

    The search waits for GPUs before and after each timed step. Changes by ``step`` to models,
    optimizers and random streams are permanent: give it a model of its own, before the training.
    The result prints as a table; its ``trials`` have each size's time, samples per second, noise
    and peak.

    Args:
        step: runs one step of the training, with a batch of the given size.
        sizes: the sizes to try, in any order.
        repeats: how often each is timed.

    Raises:
        ValueError: ``sizes`` are not whole numbers of at least 1, there are none, or ``repeats`` is
            less than 1.
    """
    return search(step, sizes, repeats)


def search(
    step: Callable[[int], object],
    sizes: Iterable[int],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
    find_cuda: Callable[[], Any] = loaded_cuda,
) -> BatchSizes:
    """Search with a clock in seconds, and a function that finds initialised ``torch.cuda``."""
    if repeats < 1:
        raise ValueError(f"find_batch_size(): repeats is {repeats!r}, expected at least 1")
    trials: list[BatchSizeTrial] = []
    for size in _checked(sizes):
        trials.append(_try(step, size, repeats, clock, find_cuda))
        if not trials[-1].fits:
            break
    return BatchSizes(trials)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means a lack of memory, of a device or of the host."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)


def _checked(sizes: Iterable[int]) -> list[int]:
    try:
        known = sorted({operator.index(size) for size in sizes})
    except TypeError:
        known = []
    if not known or known[0] < 1:
        raise ValueError("find_batch_size(): sizes: expected whole numbers of at least 1")
    return known


def _try(
    step: Callable[[int], object],
    size: int,
    repeats: int,
    clock: Callable[[], float],
    find_cuda: Callable[[], Any],
) -> BatchSizeTrial:
    before = _peak_bytes(find_cuda())
    try:
        step(size)  # compiles, chooses algorithms, fills caches
        times = [_timed(step, size, clock, find_cuda) for _ in range(repeats)]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        said = f"{type(error).__name__}: {error}".partition("\n")[0]
    else:
        return _fitting(size, times, before, _peak_bytes(find_cuda()))
    # Only here, after the exception is gone: its frames keep the batch and its results alive.
    _free(find_cuda())
    return BatchSizeTrial(size=size, fits=False, error=said)


def _timed(
    step: Callable[[int], object],
    size: int,
    clock: Callable[[], float],
    find_cuda: Callable[[], Any],
) -> float:
    _await(find_cuda())
    began = clock()
    step(size)
    _await(find_cuda())
    return clock() - began


def _await(cuda: Any) -> None:
    if cuda is not None:
        cuda.synchronize()


def _free(cuda: Any) -> None:
    gc.collect()
    if cuda is not None:
        cuda.empty_cache()


def _peak_bytes(cuda: Any) -> int:
    if cuda is None:
        return 0
    account = cuda.memory_stats_as_nested_dict(int(cuda.current_device()))
    return int(account["allocated_bytes"]["all"]["peak"]) if account else 0


def _fitting(size: int, times: list[float], before: int, peak: int) -> BatchSizeTrial:
    step_s = statistics.median(times)
    return BatchSizeTrial(
        size=size,
        fits=True,
        samples_per_s=size / step_s if step_s else None,
        step_s=step_s,
        noise_ratio=(max(times) - min(times)) / 2 / step_s if step_s else None,
        # The highest so far: it is this size's if it has risen.
        peak_bytes=peak if peak > before else None,
    )


def _is_as_good(trial: BatchSizeTrial, fastest: BatchSizeTrial) -> bool:
    if not trial.samples_per_s or not fastest.samples_per_s:
        return False
    noise = (trial.noise_ratio or 0.0) + (fastest.noise_ratio or 0.0)
    return trial.samples_per_s >= fastest.samples_per_s * (1 - noise)


def _line(trial: BatchSizeTrial) -> str:
    if not trial.fits:
        return f"{trial.size:>10}   does not fit: {trial.error:.60}"
    noise, peak = trial.noise_ratio or 0.0, trial.peak_bytes
    held = f"{peak / 1e9:.2f} GB" if peak is not None else "–"
    speed = f"{trial.samples_per_s or 0.0:>11,.1f}{noise * 100:>10.1f}{trial.step_s:>9.4f}"
    return f"{trial.size:>10} {speed}{held:>11}"
