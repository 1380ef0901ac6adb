"""Which optimizers make one step of a loop?

Nothing here keeps what a program made: whatever it forgets is forgotten here, too.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.recorder.core.interrupts import raises_afterwards

if TYPE_CHECKING:
    from collections.abc import Callable

_NOBODY: Final = -1
_MOST_TURNS: Final = 256
_DELAY: Final = 2
"""Updates of one optimizer in a row for which another that takes turns with it may wait."""


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
        self._follows_batch = False
        """Whether what is called first begins a batch: it tells of no turn within one."""
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
        self._follows_batch = self.awaits_first

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
        if not (self.awaits_first or self._follows_batch):
            if len(self._followed) > _MOST_TURNS:  # modules that are made anew each time
                self._followed.clear()
            if not self._is_another_loop:
                self._followed[self._first, self._latest] = number
            self._followed[self._first, _NOBODY] = number
        self._in_a_row = self._in_a_row + 1 if number == self._latest else 1
        self._latest, self.awaits_first, self._follows_batch = number, True, False

    def repeat(self) -> None:
        """One begins again before others had their turn: the step was whole without them."""
        self._due = {*self.done, *self._unused}
