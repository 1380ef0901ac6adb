"""Timing of a loader's batches, after its workers have started, and of its dataset's transforms.

The first batch is measured separately, because it waits for workers to start. The batches that
workers prefetched in the meantime are skipped. All further batches are timed in turns (repetitions
with the same number of batches); the spread of the turns is the noise. After an epoch, the next
epoch starts with the same workers, and its start is part of the measured time.

Torch does not time transforms. If a dataset has a callable as ``transform``, alone or in a nested
list (``Compose``), each callable is replaced with a timed wrapper and restored afterwards.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf.errors import LoaderError
from otel_mlperf.loader_trial.loaders import failure
from otel_mlperf.recorder.stepping.batch_size import count_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_TRANSFORM_ATTRIBUTES: Final = ("transform", "transforms", "target_transform")
_INNER_DATASETS: Final = ("dataset", "datasets")
"""Attributes in which datasets such as subsets and concatenations store inner datasets."""
_MAX_DEPTH: Final = 8


class TimedTransform:
    """Wrapper that counts and times the calls of a transform; forwards all other attributes."""

    def __init__(self, inner: Any, clock: Callable[[], int]) -> None:
        self._inner, self._clock = inner, clock
        self.calls = self.spent_ns = 0

    @property
    def name(self) -> str:
        """Return the name of the transform's function or, for other callables, of its class."""
        name = getattr(self._inner, "__name__", None)
        return name if isinstance(name, str) else type(self._inner).__name__

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Call the transform and add the duration to ``spent_ns``."""
        start_ns = self._clock()
        try:
            return self._inner(*values, **named)
        finally:
            self.calls += 1
            self.spent_ns += self._clock() - start_ns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def timed_transforms(dataset: Any, clock: Callable[[], int]) -> Iterator[list[TimedTransform]]:
    """Time a dataset's transforms within the context; yield the transforms' wrappers in order."""
    found = _Found(clock)
    try:
        found.in_dataset(dataset, _MAX_DEPTH)
        yield found.timed
    finally:
        for put_back in reversed(found.undo):
            put_back()


class _Found:
    """Wrappers of the transforms in a dataset, with functions that restore the originals."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._seen: set[int] = set()
        self.timed: list[TimedTransform] = []
        self.undo: list[Callable[[], None]] = []

    def in_dataset(self, dataset: Any, depth: int) -> None:
        if depth == 0 or id(dataset) in self._seen:
            return
        self._seen.add(id(dataset))
        attributes = getattr(dataset, "__dict__", {})
        for name in _TRANSFORM_ATTRIBUTES:
            if attributes.get(name) is not None:
                self._wrap_attribute(dataset, name, attributes[name], depth)
        for name in _INNER_DATASETS:
            inner = attributes.get(name)
            for one in inner if isinstance(inner, list | tuple) else (inner,):
                self.in_dataset(one, depth - 1)

    def _wrap_attribute(self, owner: Any, name: str, value: Any, depth: int) -> None:
        steps = value if isinstance(value, list) else getattr(value, "transforms", None)
        if isinstance(steps, list):
            self._wrap_list(steps, depth)
        elif any(getattr(value, inner, None) is not None for inner in _TRANSFORM_ATTRIBUTES):
            self.in_dataset(value, depth - 1)  # E.g. one transform for images, one for targets.
        elif callable(value):
            self._wrap_single(owner, name, value)

    def _wrap_list(self, steps: list[Any], depth: int) -> None:
        if id(steps) in self._seen or depth == 0:
            return
        self._seen.add(id(steps))
        for at, step in enumerate(steps):
            inner = getattr(step, "transforms", None)
            if isinstance(inner, list):
                self._wrap_list(inner, depth - 1)
            elif callable(step):
                self._wrap_item(steps, at, step)

    def _wrap_item(self, steps: list[Any], at: int, step: Any) -> None:
        steps[at] = self._timed(step)
        self.undo.append(lambda: steps.__setitem__(at, step))

    def _wrap_single(self, owner: Any, name: str, value: Any) -> None:
        timed = TimedTransform(value, self._clock)
        try:
            setattr(owner, name, timed)
        except Exception:  # noqa: BLE001 - frozen, or a class that checks: it is not told apart
            return
        self.timed.append(timed)
        self.undo.append(lambda: setattr(owner, name, value))

    def _timed(self, step: Any) -> TimedTransform:
        timed = TimedTransform(step, self._clock)
        self.timed.append(timed)
        return timed


TURNS: Final = 5
SHORTEST_NS: Final = 50_000_000
"""Minimum duration of a turn, so that a turn of a fast loader has more batches than requested."""


class Pace(NamedTuple):
    """Measured throughput of a loader."""

    first_batch_ns: int
    batches: int
    """Number of batches in all turns."""
    batch_ns: float
    """Time per batch: the median over the turns."""
    noise: float
    """Half the range from second fastest to second slowest turn, as a share of ``batch_ns``."""
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
    """Time turns of at least ``batches`` batches each, and return the loader's throughput.

    The first batch and the next ``ahead`` batches, which are already prefetched, belong to no turn.
    A loader that can be iterated only once is timed until it is exhausted.

    Raises:
        LoaderError: the loader is empty, or its code raises.
    """
    start_ns = clock()
    given = _endless(loader)
    first = _first(given)
    first_ns = clock() - start_ns
    for _ in range(ahead):
        _next(given)
    turns = [_turn(given, batches, clock) for _ in range(TURNS)]
    whole = [turn for turn in turns if turn.batches]
    alone = _Turn(1, count_samples(first, "auto") or 0, first_ns)
    return _pace(first_ns, whole or [alone], first)


def time_pass(loader: Iterable[Any], batches: int, clock: Callable[[], int]) -> tuple[Pace, int]:
    """Time one pass, up to ``batches`` batches including the first; return pace and batch count.

    Raises:
        LoaderError: the loader is empty, or its code raises.
    """
    given, start_ns = _endless(loader, passes=1), clock()
    first, count = _first(given), 1
    first_ns = clock() - start_ns
    while count < batches and _next(given) is not None:
        count += 1
    turn = _Turn(count, 0, clock() - start_ns)
    return _pace(first_ns, [turn], first), count


def _turn(given: Iterator[tuple[Any]], batches: int, clock: Callable[[], int]) -> _Turn:
    start_ns, count, samples = clock(), 0, 0
    while count < batches or clock() - start_ns < SHORTEST_NS:
        batch = _next(given)
        if batch is None:
            break
        count, samples = count + 1, samples + (count_samples(batch[0], "auto") or 0)
    return _Turn(count, samples, clock() - start_ns)


def _pace(first_ns: int, turns: list[_Turn], first: Any) -> Pace:
    each = sorted(turn.batch_ns for turn in turns)
    median_ns, taken_ns = each[len(each) // 2], sum(turn.taken_ns for turn in turns)
    inner = each[1:-1] or each
    samples = sum(turn.samples for turn in turns)
    return Pace(
        first_batch_ns=first_ns,
        batches=sum(turn.batches for turn in turns),
        batch_ns=median_ns,
        noise=(inner[-1] - inner[0]) / 2 / median_ns if median_ns else 0.0,
        samples_per_s=samples / taken_ns * 1e9 if samples and taken_ns else None,
        first=first,
    )


def _first(given: Iterator[tuple[Any]]) -> Any:
    first = _next(given)
    if first is None:
        raise LoaderError("the loader is empty: it returned no batch")
    return first[0]


def _next(given: Iterator[tuple[Any]]) -> tuple[Any] | None:
    """Return the next batch in a 1-tuple, because a batch may be None; return None at the end."""
    try:
        return next(given, None)
    except (Exception, SystemExit) as error:
        raise LoaderError(f"loading a batch failed: {failure(error)}") from error


def _endless(loader: Iterable[Any], passes: int = -1) -> Iterator[tuple[Any]]:
    """Yield the loader's batches as 1-tuples, for ``passes`` epochs (-1: without limit)."""
    while passes:
        iterator, is_empty = iter(loader), True
        for batch in iterator:
            is_empty = False
            yield (batch,)
        if is_empty or iterator is loader:
            return
        passes -= 1
