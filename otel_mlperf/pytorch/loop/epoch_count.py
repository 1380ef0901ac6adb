"""Numbers of the epochs of a watched loop.

An epoch is a pass over the loader that steps start with, counted from 0, or what a framework
reports as its epoch. A new iterator alone is not a new epoch if a single batch was taken from the
one before: programs call ``next(iter(loader))`` for each step. In a resumed program only a
framework knows the number.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary


class _Pass:
    """One pass over a loader."""

    def __init__(self) -> None:
        self.steps = 0
        self.is_over = False
        """Whether the loader had no more batches."""


class EpochCount:
    """Numbering of the epochs of one loop's steps."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._reported: int | None = None
        self._passes: WeakKeyDictionary[Any, _Pass] = WeakKeyDictionary()
        """Passes by their iterator."""
        self._pass: _Pass | None = None
        """Pass of the last step."""
        self._before: tuple[int | None, _Pass | None, int | None] = None, None, None
        self._is_resumed = False

    def ask(self, source: Any) -> None:
        """Note that an iterator is about to be asked for a batch to train on."""
        # The iterator of persistent workers is the same in each pass.
        if source not in self._passes or getattr(source, "_num_yielded", 1) == 0:
            self._passes[source] = _Pass()

    def run_out(self, source: Any) -> None:
        """Note that an iterator has no more batches."""
        if source in self._passes:
            self._passes[source].is_over = True

    def report(self, number: int) -> None:
        """Note that a framework starts its epoch of that number."""
        self._reported = number

    def resume(self) -> None:
        """Note that the program continues a training whose passes are not known."""
        self._is_resumed |= self._number is None

    def begin_step(self, source: Any) -> int | None:
        """Return the epoch of a step that starts with this iterator, if it has one."""
        self._before = self._number, self._pass, self._reported
        of = self._passes.get(source) if source is not None else None
        if self._reported is not None:
            self._number, self._reported = self._reported, None
        elif self._is_new(of) and not self._is_resumed:
            self._number = 0 if self._number is None else self._number + 1
        self._pass = of or self._pass
        return self._number

    def _is_new(self, of: _Pass | None) -> bool:
        before = self._pass
        if of is None or of is before:
            return False
        return before is None or before.is_over or before.steps > 1

    def end_step(self) -> None:
        """Count the end of a step."""
        if self._pass is not None:
            self._pass.steps += 1

    def cancel_step(self) -> None:
        """Undo the start of a step that is cancelled."""
        self._number, self._pass, self._reported = self._before
