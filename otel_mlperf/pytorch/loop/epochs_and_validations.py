"""Epochs and validations of a watched loop: the numbers of the epochs, the batches of validations.

An epoch is a pass over the loader that steps start with, counted from 0, or what a framework
reports as its epoch. A new iterator alone is not a new epoch if a single batch was taken from the
one before: programs call ``next(iter(loader))`` for each step. In a resumed program only a
framework knows the number.

A validation is open from the first batch or forward that shows it to the next one for training,
and lasts as long as its last part: what follows that part does not belong to it. A validation
without any computation is cancelled: the program only read data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import weakref


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


class ValidationSink(Protocol):
    """Sink for validations."""

    def begin_validation(self, at_ns: int) -> None:
        """Open a validation backdated to ``at_ns``: outside steps, even inside one."""

    def end_validation(self, at_ns: int) -> None:
        """End it, at a time in the past."""

    def cancel_validation(self) -> None:
        """Cancel it."""


class Validation:
    """The validations of one loop, one after the other."""

    def __init__(self, sink: ValidationSink) -> None:
        self._sink = sink
        self.is_open = False
        self._source: weakref.ref[Any] | None = None
        """The iterator whose batches are validated; None: it has no loader."""
        self._has_forwards = self._is_untried = False
        """Whether there was a forward; whether there was none since the last batch."""
        self._seen_ns = 0

    def begin(self, source: weakref.ref[Any] | None, at_ns: int) -> None:
        """Start it at that time, with batches of that iterator if there is one."""
        self.is_open, self._source = True, source
        self._has_forwards = self._is_untried = False
        self._seen_ns = at_ns
        self._sink.begin_validation(at_ns)

    def is_fed_by(self, source: object) -> bool:
        """Return whether one is open that gets batches from this iterator."""
        return self.is_open and self._source is not None and self._source() is source

    @property
    def has_loader(self) -> bool:
        """Return whether one is open that uses batches of a loader."""
        return self.is_open and self._source is not None

    @property
    def is_untried(self) -> bool:
        """Return whether nothing was computed from its last batch."""
        return self.is_open and self._is_untried

    def add_batch(self) -> None:
        """Note a batch."""
        self._is_untried = True

    def add_forward(self) -> None:
        """Note a computation."""
        self._has_forwards, self._is_untried = True, False

    def take_forwards_back(self) -> None:
        """Note that the computations were for training."""
        self._has_forwards = False

    def seen(self, at_ns: int) -> None:
        """Note the end of a part of it at that time."""
        self._seen_ns = at_ns

    def end(self) -> None:
        """End it, if one is open."""
        if not self.is_open:
            return
        self.is_open = False
        if self._has_forwards:
            self._sink.end_validation(self._seen_ns)
        else:
            self._sink.cancel_validation()
