"""Batch size search: the largest batch size that fits, and the fastest one.

The program's own step is called with one size after the other, smallest first. A size that runs out
of memory ends the search; its memory is released before the program continues.
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

_MESSAGES: Final = ("out of memory", "not enough memory", "can't allocate memory", "_ALLOC_FAILED")
"""Parts of out-of-memory messages in RuntimeErrors, of CUDA, its libraries and CPU allocators."""
_HEAD: Final = "batch size   samples/s      ± %   s/step       peak"


@dataclass(frozen=True, kw_only=True)
class BatchSizeTrial:
    """Result for one batch size."""

    size: int
    fits: bool
    samples_per_s: float | None = None
    """Size ÷ median time of a step; None: it does not fit."""
    step_s: float | None = None
    """Median of the timed steps, in seconds."""
    noise_ratio: float | None = None
    """Half the range of the timed steps ÷ their median: smaller differences are not significant."""
    peak_bytes: int | None = None
    """Peak allocated by PyTorch's CUDA allocator; None: no CUDA, or an earlier peak was higher."""
    error: str = ""
    """Error message when the memory ran out."""


@dataclass(frozen=True)
class BatchSizes:
    """Results of a batch size search, ascending by size; printed as a table."""

    trials: Sequence[BatchSizeTrial]

    @property
    def largest(self) -> int | None:
        """Largest size that fits into memory; None if no size fits."""
        return max((trial.size for trial in self.trials if trial.fits), default=None)

    @property
    def best(self) -> int | None:
        """Size with the most samples per second; None if no size fits."""
        fastest = self._fastest()
        return fastest.size if fastest is not None else None

    @property
    def as_good(self) -> list[int]:
        """Sizes that are as fast as ``best``, within the noise of both."""
        fastest = self._fastest()
        return [trial.size for trial in self.trials if fastest and _is_as_good(trial, fastest)]

    def _fastest(self) -> BatchSizeTrial | None:
        fitting = [trial for trial in self.trials if trial.fits]
        return max(fitting, key=lambda trial: trial.samples_per_s or 0.0, default=None)

    def __str__(self) -> str:
        lines = [_HEAD, *map(_line, self.trials)]
        if self.best is None:
            return "\n".join([*lines, "no batch size fits"])
        other_sizes = [str(size) for size in self.as_good if size != self.best]
        equal = f" (within the noise: {', '.join(other_sizes)})" if other_sizes else ""
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

    Sizes are tried in ascending order. Each is called once without being timed, then ``repeats``
    times. The search ends at the first size that runs out of memory: the memory of that size and
    CUDA's cache are freed, and the program continues. Any other exception of ``step`` propagates.

    The search waits for GPUs before and after each timed step. Changes by ``step`` to models,
    optimizers and random streams are permanent: use a separate model, before the training. The
    result prints as a table; its ``trials`` contain time, samples per second, noise and peak of
    each size.

    Args:
        step: runs one step of the training, with a batch of the given size.
        sizes: the sizes to try, in any order.
        repeats: number of timed steps per size.

    Raises:
        ValueError: ``sizes`` are empty or not whole numbers of at least 1, or ``repeats`` is
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
    """Run ``find_batch_size`` with a given clock (seconds) and finder of ``torch.cuda``."""
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
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _MESSAGES)


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
        step(size)  # warm-up: compiles, chooses algorithms, fills caches
        times = [_timed(step, size, clock, find_cuda) for _ in range(repeats)]
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
    else:
        return _fitting(size, times, before, _peak_bytes(find_cuda()))
    # Freed only after the `except` block: the exception's frames keep the batch and its results
    # alive.
    _free(find_cuda())
    return BatchSizeTrial(size=size, fits=False, error=message)


def _timed(
    step: Callable[[int], object],
    size: int,
    clock: Callable[[], float],
    find_cuda: Callable[[], Any],
) -> float:
    _await(find_cuda())
    start_s = clock()
    step(size)
    _await(find_cuda())
    return clock() - start_s


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
        # The peak counts since the start: it is this size's only if it has risen.
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
    memory = f"{peak / 1e9:.2f} GB" if peak is not None else "–"
    speed = f"{trial.samples_per_s or 0.0:>11,.1f}{noise * 100:>10.1f}{trial.step_s:>9.4f}"
    return f"{trial.size:>10} {speed}{memory:>11}"
