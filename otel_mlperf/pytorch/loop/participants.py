"""Trained modules and data sets of a loop.

Only weak references are kept: entries of deleted objects are removed.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from otel_mlperf.recorder.core.interrupts import raises_afterwards

_DEEPEST: Final = 8
"""Maximum number of nested modules that are searched for a wrapped module."""
_NEVER: Final = -2


class _Called:
    """Facts about an outermost module, that is, one which no other module called."""

    __slots__ = (
        "can_learn", "core", "has_collected", "has_learned", "has_parameters", "itself",
        "learns_always", "taught_in", "teaches", "was_tried",
    )  # fmt: skip

    def __init__(self, module: Any, core: Any, forget: Any) -> None:
        self.itself = weakref.ref(module, forget)
        self.core = weakref.ref(core)
        """Innermost wrapped module (DDP): an evaluation may switch the mode of only this module."""
        self.has_parameters = next(iter(module.parameters()), None) is not None
        self.can_learn = any(parameter.requires_grad for parameter in module.parameters())
        self.has_collected = self.has_learned = self.learns_always = self.was_tried = False
        self.teaches, self.taught_in = False, _NEVER
        """Whether the module is a teacher, called first in each step; the last step it started."""


class Learners:
    """Record of the outermost modules that were called, and of the trained modules among them."""

    def __init__(self) -> None:
        self._known: dict[int, _Called] = {}
        self._latest: _Called | None = None
        self.heard: set[_Called] = set()
        """Modules called between two steps, without a loader's batch, since the last step."""

    def __bool__(self) -> bool:
        return self._latest is not None

    def __contains__(self, module: object) -> bool:
        known = self._known.get(id(module))
        return known is not None and known.has_learned

    def tries(self, module: Any) -> bool:
        """Note a call without training; return whether the module has parameters."""
        known = self._known.get(id(module)) or self._know(module)
        known.was_tried = True
        return known.has_parameters

    def is_new(self, module: Any) -> bool:
        """Return whether the module was never called before the current call."""
        known = self._known.get(id(module))
        return known is None or not (known.has_learned or known.was_tried)

    def learns(self, module: Any) -> bool:
        """Return whether a call of the module is training, if gradients are recorded."""
        known = self._known.get(id(module)) or self._know(module)
        return known.can_learn and (module.training or known.learns_always)

    def add(self, module: Any) -> None:
        """Note that this module was trained."""
        latest = self._latest
        if latest is not None and latest.itself() is module:
            return
        known = self._known.get(id(module)) or self._know(module)
        if not known.has_learned:
            known.has_learned = True
            self._add_inside(module)
        self._latest = known

    def forget_latest(self) -> None:
        """Forget which module was trained last, because its mode does not predict what follows."""
        self._latest = None

    def add_evaluating(self, module: Any) -> None:
        """Note that the module is trained in evaluation mode, so its mode is not informative."""
        self.add(module)
        self._known[id(module)].learns_always = True

    @property
    def are_evaluated(self) -> bool:
        """Return whether the module that was trained last is now in evaluation mode."""
        latest = self._latest
        core = latest.core() if latest is not None and not latest.learns_always else None
        return core is not None and not core.training

    def collects(self, module: Any, *, is_fed: bool) -> bool:
        """Return whether a call without gradients collects training data, like a policy call.

        Such a model is recognised by a call in training mode before its first training. ``is_fed``:
        whether the call may be for a loader's batch.
        """
        known = self._known.get(id(module)) or self._know(module)
        core = known.core()
        if not module.training or (core is not None and not core.training):
            return False
        if not known.has_learned and not is_fed:
            known.has_collected = True
        return known.has_collected

    def teaches(self, module: Any) -> bool:
        """Return whether the module is a teacher: called first in each step, and never trained."""
        known = self._known.get(id(module))
        return known is not None and known.teaches

    def hear(self, module: Any) -> None:
        """Note a call of ``module`` between two steps, without a loader's batch."""
        self.heard.add(self._known.get(id(module)) or self._know(module))

    def are_teacher_calls(self, learning: Any, turn: int) -> bool:
        """Return whether the calls noted by ``hear`` belong to training, not to a validation.

        Teachers are never trained, and were called before step ``turn - 1`` as well. Before the
        first training call, modules of another model than ``learning`` (None: a backward pass) do
        not belong to a validation either.
        """
        if not self.heard:
            return False
        heard, self.heard = self.heard, set()
        core = None if learning is None else _layers_of(learning)[-1]
        if any(known.has_learned or known.core() is core for known in heard):
            return False
        is_again = all(turn == known.taught_in + 1 for known in heard)
        for known in heard:
            known.teaches |= known.taught_in == turn - 1
            known.taught_in = turn
        return is_again or self._latest is None

    def _add_inside(self, module: Any) -> None:
        for layer in _layers_of(module)[1:]:
            known = self._known.get(id(layer)) or self._know(layer)
            known.has_learned = True

    def _know(self, module: Any) -> _Called:
        number = id(module)

        @raises_afterwards
        def forget(_: object) -> None:
            self._known.pop(number, None)

        known = self._known[number] = _Called(module, _layers_of(module)[-1], forget)
        return known


def _layers_of(module: Any) -> list[Any]:
    """Return a module and the modules that it wraps, outermost first."""
    layers = [module]
    while len(layers) < _DEEPEST and len(inside := list(layers[-1].children())) == 1:
        layers.append(inside[0])
    return layers


class DataSets:
    """Data sets of loaders. Each has a number as long as the data set exists."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any] | None] = {}
        self.trained: set[int] = set()
        """Numbers of the data sets whose batches were for training."""

    def __len__(self) -> int:
        return len(self._known)

    def __bool__(self) -> bool:
        """Return whether a data set was trained on."""
        return bool(self.trained)

    def number_of(self, data: Any) -> int:
        """Return the number of a data set; it may be reused once the data set is deleted."""
        number = id(data)
        if number not in self._known:
            forget = raises_afterwards(lambda _: self._forget(number))
            try:
                self._known[number] = weakref.ref(data, forget)
            except TypeError:  # e.g. a list
                self._known[number] = None
        return number

    def train(self, number: int) -> None:
        """Note that batches of data set ``number`` are for training."""
        if number in self._known:
            self.trained.add(number)

    def _forget(self, number: int) -> None:
        self._known.pop(number, None)
        self.trained.discard(number)
