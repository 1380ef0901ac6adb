"""Trained modules and data sets of a loop.

Only weak references are kept: what the program forgets is forgotten here, too.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

from otel_mlperf.recorder.core.interrupts import raises_afterwards

_DEEPEST: Final = 8
"""Modules around one another that are looked through."""
_NEVER: Final = -2


class _Called:
    """What is known of a module that was called by no other."""

    __slots__ = (
        "can_learn", "core", "has_collected", "has_learned", "has_parameters", "itself",
        "learns_always", "taught_in", "teaches", "was_tried",
    )  # fmt: skip

    def __init__(self, module: Any, core: Any, forget: Any) -> None:
        self.itself = weakref.ref(module, forget)
        self.core = weakref.ref(core)
        """What it wraps, as DistributedDataParallel does: an evaluation may switch that alone."""
        self.has_parameters = next(iter(module.parameters()), None) is not None
        self.can_learn = any(parameter.requires_grad for parameter in module.parameters())
        self.has_collected = self.has_learned = self.learns_always = self.was_tried = False
        self.teaches, self.taught_in = False, _NEVER
        """Whether each step begins with it; the turn of the loop that began with it last."""


class Learners:
    """The modules that were called while gradients were recorded."""

    def __init__(self) -> None:
        self._known: dict[int, _Called] = {}
        self._latest: _Called | None = None
        self.heard: set[_Called] = set()
        """Called between two steps, where no loader gives anything, since the last step."""

    def __bool__(self) -> bool:
        return self._latest is not None

    def __contains__(self, module: object) -> bool:
        known = self._known.get(id(module))
        return known is not None and known.has_learned

    def tries(self, module: Any) -> bool:
        """It is called and does not learn: whether it is a model, and no metric, by parameters."""
        known = self._known.get(id(module)) or self._know(module)
        known.was_tried = True
        return known.has_parameters

    def is_new(self, module: Any) -> bool:
        """Whether it was never called before the call that goes on."""
        known = self._known.get(id(module))
        return known is None or not (known.has_learned or known.was_tried)

    def learns(self, module: Any) -> bool:
        """Whether a call of it trains, if gradients are recorded."""
        known = self._known.get(id(module)) or self._know(module)
        return known.can_learn and (module.training or known.learns_always)

    def add(self, module: Any) -> None:
        """This one has learned now."""
        latest = self._latest
        if latest is not None and latest.itself() is module:
            return
        known = self._known.get(id(module)) or self._know(module)
        if not known.has_learned:
            known.has_learned = True
            self._add_inside(module)
        self._latest = known

    def begin_anew(self) -> None:
        """The mode of the one that learned last says nothing of what comes."""
        self._latest = None

    def add_evaluating(self, module: Any) -> None:
        """This one has learned in evaluation mode: the mode says nothing of it."""
        self.add(module)
        self._known[id(module)].learns_always = True

    @property
    def are_evaluated(self) -> bool:
        """Whether the one that learned last is in evaluation mode, for once."""
        latest = self._latest
        core = latest.core() if latest is not None and not latest.learns_always else None
        return core is not None and not core.training

    def collects(self, module: Any, *, is_fed: bool) -> bool:
        """Whether a call of it without gradients gives what is learned from, as of a policy.

        Known by its first call: such a model is asked in training mode before it has ever learned.
        ``is_fed``: a loader's batch is what it is called with, perhaps.
        """
        known = self._known.get(id(module)) or self._know(module)
        core = known.core()
        if not module.training or (core is not None and not core.training):
            return False
        if not known.has_learned and not is_fed:
            known.has_collected = True
        return known.has_collected

    def teaches(self, module: Any) -> bool:
        """Whether a turn begins with it, which never learns: a teacher, or a reference model."""
        known = self._known.get(id(module))
        return known is not None and known.teaches

    def hear(self, module: Any) -> None:
        """It is called between two steps, where no loader gives anything."""
        self.heard.add(self._known.get(id(module)) or self._know(module))

    def heard_teachers(self, learning: Any, turn: int) -> bool:
        """Whether those that were heard before ``learning`` is called are no validation.

        Teachers never learn, and they were what came before the last turn, too; nor is it another
        model that is validated before the first turn.
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
        """What a wrapper holds learns with it."""
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
    """A module, what it wraps, and so on."""
    layers = [module]
    while len(layers) < _DEEPEST and len(inside := list(layers[-1].children())) == 1:
        layers.append(inside[0])
    return layers


class DataSets:
    """The data sets that loaders were asked for, each by a number for as long as it is there."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any] | None] = {}
        self._trained: set[int] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __bool__(self) -> bool:
        """Whether one was trained on."""
        return bool(self._trained)

    def number_of(self, data: Any) -> int:
        """Its number; another one may have it once this one is gone."""
        number = id(data)
        if number not in self._known:
            forget = raises_afterwards(lambda _: self._forget(number))
            try:
                self._known[number] = weakref.ref(data, forget)
            except TypeError:  # a list
                self._known[number] = None
        return number

    def train(self, number: int) -> None:
        """Its batches are for training."""
        if number in self._known:
            self._trained.add(number)

    def are_trained(self, number: int) -> bool:
        """Whether they were before."""
        return number in self._trained

    def _forget(self, number: int) -> None:
        self._known.pop(number, None)
        self._trained.discard(number)
