"""Timing of a loader's throughput, after its workers have started, and of its transforms.

The first batch is measured separately, because it waits for workers to start. The batches that
workers prefetched in the meantime are skipped. The rest is timed in turns, whose spread is the
noise. After an epoch the next one starts with the same workers, and its start is part of the time.

Torch does not report what a dataset does. If a dataset has a callable as ``transform``, alone or in
a nested list (``Compose``), a timer is wrapped around each callable and removed afterwards.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mlperf.errors import LoaderError
from otel_mlperf.loader_trial.loaders import failure
from otel_mlperf.recorder.stepping.batch_size import count_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_HELD_AS: Final = ("transform", "transforms", "target_transform")
_AROUND: Final = ("dataset", "datasets")
"""Attributes in which datasets store inner datasets: subsets, concatenations."""
_DEEPEST: Final = 8


class TimedTransform:
    """Timed wrapper of a transform; it forwards all attributes."""

    def __init__(self, inner: Any, clock: Callable[[], int]) -> None:
        self._inner, self._clock = inner, clock
        self.calls = self.spent_ns = 0

    @property
    def name(self) -> str:
        """Return its class, or the function's own name."""
        name = getattr(self._inner, "__name__", None)
        return name if isinstance(name, str) else type(self._inner).__name__

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Call the transform and add the time that it takes."""
        began = self._clock()
        try:
            return self._inner(*values, **named)
        finally:
            self.calls += 1
            self.spent_ns += self._clock() - began

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@contextmanager
def timed_transforms(dataset: Any, clock: Callable[[], int]) -> Iterator[list[TimedTransform]]:
    """Yield the transforms found, in their order; they are timed within the context."""
    found = _Found(clock)
    try:
        found.in_dataset(dataset, _DEEPEST)
        yield found.timed
    finally:
        for put_back in reversed(found.undo):
            put_back()


class _Found:
    """Transforms found in a dataset, with the functions that restore them."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._seen: set[int] = set()
        self.timed: list[TimedTransform] = []
        self.undo: list[Callable[[], None]] = []

    def in_dataset(self, dataset: Any, depth: int) -> None:
        if depth == 0 or id(dataset) in self._seen:
            return
        self._seen.add(id(dataset))
        held = getattr(dataset, "__dict__", {})
        for name in _HELD_AS:
            if held.get(name) is not None:
                self._held(dataset, name, held[name], depth)
        for name in _AROUND:
            inner = held.get(name)
            for one in inner if isinstance(inner, list | tuple) else (inner,):
                self.in_dataset(one, depth - 1)

    def _held(self, owner: Any, name: str, value: Any, depth: int) -> None:
        steps = value if isinstance(value, list) else getattr(value, "transforms", None)
        if isinstance(steps, list):
            self._listed(steps, depth)
        elif any(getattr(value, inner, None) is not None for inner in _HELD_AS):
            self.in_dataset(value, depth - 1)  # e.g. one for images and one for targets
        elif callable(value):
            self._replace(owner, name, value)

    def _listed(self, steps: list[Any], depth: int) -> None:
        if id(steps) in self._seen or depth == 0:
            return
        self._seen.add(id(steps))
        for at, step in enumerate(steps):
            inner = getattr(step, "transforms", None)
            if isinstance(inner, list):
                self._listed(inner, depth - 1)
            elif callable(step):
                self._put(steps, at, step)

    def _put(self, steps: list[Any], at: int, step: Any) -> None:
        steps[at] = self._timed(step)
        self.undo.append(lambda: steps.__setitem__(at, step))

    def _replace(self, owner: Any, name: str, value: Any) -> None:
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
