"""Time of each transform of a dataset.

Torch does not report what a dataset does. If a dataset has a callable as ``transform``, alone or in
a nested list (``Compose``), a timer is wrapped around each callable and removed afterwards.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
