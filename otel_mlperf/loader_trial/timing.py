"""Timing of a loader's throughput, after its workers have started.

The first batch is measured separately, because it waits for workers to start. The batches that
workers prefetched in the meantime are skipped. The rest is timed in turns, whose spread is the
noise. After an epoch the next one starts with the same workers, and its start is part of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf.errors import LoaderError
from otel_mlperf.loader_trial.loader_source import failure
from otel_mlperf.recorder.stepping.batch_size import count_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TURNS: Final = 5
SHORTEST_NS: Final = 50_000_000
"""Minimum duration of a turn: fast loaders deliver more batches per turn."""


class Pace(NamedTuple):
    """Measured throughput of a loader."""

    first_batch_ns: int
    batches: int
    """Number of timed batches, without the first."""
    batch_ns: float
    """Time between batches: the median of the turns."""
    noise: float
    """Half the range from the second fastest to the second slowest turn, as a share."""
    samples_per_s: float | None
    first: Any
    """The first batch."""


class _Turn(NamedTuple):
    batches: int
    samples: int
    taken_ns: int

    @property
    def batch_ns(self) -> float:
        return self.taken_ns / self.batches


def time_batches(loader: Iterable[Any], batches: int, ahead: int, clock: Callable[[], int]) -> Pace:
    """Time turns of ``batches`` batches, after the first and the ``ahead`` that follow it.

    A loader that can be iterated only once, and is shorter, is timed as far as possible.

    Raises:
        LoaderError: it is empty, or its code raises.
    """
    began = clock()
    given = _endless(loader)
    first = _first(given)
    first_ns = clock() - began
    for _ in range(ahead):
        _next(given)
    turns = [_turn(given, batches, clock) for _ in range(TURNS)]
    whole = [turn for turn in turns if turn.batches]
    alone = _Turn(1, count_samples(first, "auto") or 0, first_ns)
    return _pace(first_ns, whole or [alone], first)


def time_pass(loader: Iterable[Any], batches: int, clock: Callable[[], int]) -> tuple[Pace, int]:
    """Time the first batches of one pass, all equally weighted; also return their number.

    Raises:
        LoaderError: it is empty, or its code raises.
    """
    given, began = _endless(loader, passes=1), clock()
    first, count = _first(given), 1
    first_ns = clock() - began
    while count < batches and _next(given) is not None:
        count += 1
    turn = _Turn(count, 0, clock() - began)
    return _pace(first_ns, [turn], first), count


def _turn(given: Iterator[tuple[Any]], batches: int, clock: Callable[[], int]) -> _Turn:
    began, count, samples = clock(), 0, 0
    while count < batches or clock() - began < SHORTEST_NS:
        batch = _next(given)
        if batch is None:
            break
        count, samples = count + 1, samples + (count_samples(batch[0], "auto") or 0)
    return _Turn(count, samples, clock() - began)


def _pace(first_ns: int, turns: list[_Turn], first: Any) -> Pace:
    each = sorted(turn.batch_ns for turn in turns)
    usual, taken_ns = each[len(each) // 2], sum(turn.taken_ns for turn in turns)
    inner = each[1:-1] or each
    samples = sum(turn.samples for turn in turns)
    return Pace(
        first_batch_ns=first_ns,
        batches=sum(turn.batches for turn in turns),
        batch_ns=usual,
        noise=(inner[-1] - inner[0]) / 2 / usual if usual else 0.0,
        samples_per_s=samples / taken_ns * 1e9 if samples and taken_ns else None,
        first=first,
    )


def _first(given: Iterator[tuple[Any]]) -> Any:
    first = _next(given)
    if first is None:
        raise LoaderError("the loader is empty: it gave no batch")
    return first[0]


def _next(given: Iterator[tuple[Any]]) -> tuple[Any] | None:
    """Return the next batch in a tuple, because a batch may be None; None at the end."""
    try:
        return next(given, None)
    except (Exception, SystemExit) as error:
        raise LoaderError(f"loading a batch failed: {failure(error)}") from error


def _endless(loader: Iterable[Any], passes: int = -1) -> Iterator[tuple[Any]]:
    """Yield its batches, epoch after epoch."""
    while passes:
        iterator, is_empty = iter(loader), True
        for batch in iterator:
            is_empty = False
            yield (batch,)
        if is_empty or iterator is loader:
            return
        passes -= 1
