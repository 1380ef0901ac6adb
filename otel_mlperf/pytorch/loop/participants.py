"""Which modules and data are trained in a loop, and which optimizers make one of its steps?

Nothing here keeps what a program made: whatever it forgets is forgotten here, too.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.recorder.core.interrupts import raises_afterwards

if TYPE_CHECKING:
    from collections.abc import Callable

_DEEPEST: Final = 8
"""Modules around one another that are looked through."""
_NOBODY: Final = -1
_NEVER: Final = -2
_MOST_TURNS: Final = 256
_DELAY: Final = 2
"""Updates of one optimizer in a row for which another that takes turns with it may wait."""


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


class UpdateRound:
    """The updates of one step: each optimizer that takes turns with others has one in it.

    Whose turn it is tells the module that is called first after an update: it is remembered which
    optimizer's update followed it. So one that has its turn only now and then adds no step. What
    begins after one optimizer had many turns alone is another loop, if nobody knows better.
    """

    def __init__(self) -> None:
        self._unused: dict[int, weakref.ref[Any]] = {}
        """Optimizers that were made and have not updated anything yet."""
        self._due: set[int] = set()
        """Those whose updates a step waits for, as the one before has shown."""
        self.done: set[int] = set()
        """Those that have updated something in this step."""
        self.is_expected = False
        """Whether the program has optimizers at all."""
        self._followed: dict[tuple[int, int], int] = {}
        """Which optimizer updated after a module was called first, by that and the one before."""
        self._latest = self._first = _NOBODY
        """The optimizer that has updated last, and the module that was called first since."""
        self.awaits_first = True
        """Whether none was called since."""
        self._in_a_row = 0
        """How often it has."""
        self._is_another_loop = False
        """Whether what was called first since is taken for one: no turn that comes again."""

    def __len__(self) -> int:
        """Optimizers that have updated something in this step."""
        return len(self.done)

    def __contains__(self, optimizer: object) -> bool:
        return id(optimizer) in self.done

    @property
    def is_whole(self) -> bool:
        """Whether all have that are waited for, so that other work is another step's."""
        return bool(self.done) and self.done >= self._due

    def is_over_for(
        self,
        module: object,
        is_new: Callable[[Any], bool],
        *,
        records: bool = True,
        is_fed: bool = False,
    ) -> bool:
        """Whether what is computed now is no more of the step; asked once after each update.

        Args:
            module: what computes; None: a backward pass.
            is_new: says whether a module was never called before.
            records: whether with gradients.
            is_fed: whether the loop will ask a loader for a batch again, which ends the step.
        """
        if not self.awaits_first:
            return False
        self.awaits_first, self._first = False, (first := id(module) * 2 + records)
        self._is_another_loop = False
        following = self._followed.get((first, self._latest))
        if following is not None:
            return following in self.done
        if not self._unused:
            following = self._followed.get((first, _NOBODY))
        if following in self.done:
            return True
        if is_fed:
            return False
        if self._in_a_row > _DELAY and self.done:
            is_known = following is None and self._unused and (module is None or not is_new(module))
            self._is_another_loop = not is_known
        return self._is_another_loop or (following is None and self.is_whole)

    def made(self, optimizer: Any) -> None:
        """The program has a new optimizer."""
        self.is_expected, number = True, id(optimizer)
        forget = raises_afterwards(lambda _: self._unused.pop(number, None))
        self._unused[number] = weakref.ref(optimizer, forget)

    def begin(self) -> None:
        """A step begins."""
        self.done = set()

    def add(self, optimizer: object) -> None:
        """One has updated its parameters."""
        self.is_expected, number = True, id(optimizer)
        if not self.done and number not in self._due:
            # Another loop, or the first: those that were never used may take turns with this one.
            self._due = {number, *self._unused}
        self._unused.pop(number, None)
        self.done.add(number)
        self._remember(number)

    def _remember(self, number: int) -> None:
        if not self.awaits_first:
            if len(self._followed) > _MOST_TURNS:  # modules that are made anew each time
                self._followed.clear()
            if not self._is_another_loop:
                self._followed[self._first, self._latest] = number
            self._followed[self._first, _NOBODY] = number
        self._in_a_row = self._in_a_row + 1 if number == self._latest else 1
        self._latest, self.awaits_first = number, True

    def repeat(self) -> None:
        """One begins again before others had their turn: the step was whole without them."""
        self._due = {*self.done, *self._unused}
