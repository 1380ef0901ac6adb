"""Epoch numbers and validations of an inferred loop.

An epoch is a pass over the loader that steps start with, counted from 0. A number that a framework
reports for its epoch takes precedence. A new iterator does not start an epoch if the previous one
fed only a single step: some programs call ``next(iter(loader))`` for each step. In a resumed
program, only a framework can report the number.

A validation starts with its first batch or forward, and is open until the next batch or forward for
training. The recorded end of a validation is the end of its last batch or forward. A validation
without a forward is cancelled: the program only read data.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol
from weakref import WeakKeyDictionary


class _Pass:
    def __init__(self) -> None:
        self.steps = 0
        self.is_over = False


class EpochCount:
    """Numbering of the epochs of one loop's steps."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._reported: int | None = None
        self._passes: WeakKeyDictionary[Any, _Pass] = WeakKeyDictionary()
        """Passes by their iterator."""
        self._newest: tuple[weakref.ref[Any], _Pass] | None = None
        """Newest iterator and its pass, for which no lookup in ``_passes`` is needed."""
        self._pass: _Pass | None = None
        self._before: tuple[int | None, _Pass | None, int | None] = None, None, None
        self._is_resumed = False

    def ask(self, source: Any) -> None:
        """Note that a training batch is about to be requested from an iterator."""
        # With persistent workers, all passes share one iterator.
        if getattr(source, "_num_yielded", 1) == 0 or self._pass_of(source) is None:
            new = self._passes[source] = _Pass()
            self._newest = weakref.ref(source), new

    def _pass_of(self, source: Any) -> _Pass | None:
        newest = self._newest
        if newest is not None and newest[0]() is source:
            return newest[1]
        return self._passes.get(source)

    def run_out(self, source: Any) -> None:
        """Note that an iterator has no more batches."""
        if source in self._passes:
            self._passes[source].is_over = True

    def report(self, number: int) -> None:
        """Note the number of the epoch that a framework is starting."""
        self._reported = number

    def resume(self) -> None:
        """Note that a training is resumed, so that only a framework can number its epochs."""
        self._is_resumed |= self._number is None

    def begin_step(self, source: Any) -> int | None:
        """Return the epoch of a step that starts; None if the epoch is unknown.

        ``source``: the iterator that feeds the step; None if the step uses no loader.
        """
        self._before = self._number, self._pass, self._reported
        of = self._pass_of(source) if source is not None else None
        before = self._pass
        if self._reported is not None:
            self._number, self._reported = self._reported, None
        elif of is not None and of is not before and self._starts_epoch(before):
            self._number = 0 if self._number is None else self._number + 1
        self._pass = of or before
        return self._number

    def _starts_epoch(self, before: _Pass | None) -> bool:
        """Return whether a pass starts an epoch after the pass ``before`` (None: no pass)."""
        if self._is_resumed:
            return False
        return before is None or before.is_over or before.steps > 1

    def end_step(self) -> None:
        """Count a step that has ended, in its pass."""
        if self._pass is not None:
            self._pass.steps += 1

    def cancel_step(self) -> None:
        """Undo the start of a step that is cancelled."""
        self._number, self._pass, self._reported = self._before


class ValidationSink(Protocol):
    """Protocol of a receiver of inferred validations."""

    def begin_validation(self, at_ns: int) -> None:
        """Open a validation backdated to ``at_ns``; its time never counts as time of a step."""

    def end_validation(self, at_ns: int) -> None:
        """End the open validation, backdated to ``at_ns``."""

    def cancel_validation(self) -> None:
        """Cancel the open validation."""


class Validation:
    """Validations of one loop; at most one is open at a time."""

    def __init__(self, sink: ValidationSink) -> None:
        self._sink = sink
        self.is_open = False
        self._source: weakref.ref[Any] | None = None
        """Iterator whose batches are validated; None: the validation uses no loader."""
        self._has_forwards = self._is_untried = False
        """Whether there was a forward; whether there was none since the last batch."""
        self._seen_ns = 0

    def begin(self, source: weakref.ref[Any] | None, at_ns: int) -> None:
        """Start a validation at ``at_ns`` that uses batches of the iterator ``source``, if any."""
        self.is_open, self._source = True, source
        self._has_forwards = self._is_untried = False
        self._seen_ns = at_ns
        self._sink.begin_validation(at_ns)

    def is_fed_by(self, source: object) -> bool:
        """Return whether a validation is open that uses batches of this iterator."""
        return self.is_open and self._source is not None and self._source() is source

    @property
    def has_loader(self) -> bool:
        """Return whether a validation is open that uses batches of a loader."""
        return self.is_open and self._source is not None

    @property
    def is_untried(self) -> bool:
        """Return whether the open validation has computed nothing from its last batch."""
        return self.is_open and self._is_untried

    def add_batch(self) -> None:
        """Note that the open validation has received a batch."""
        self._is_untried = True

    def add_forward(self) -> None:
        """Note that the open validation has called a module."""
        self._has_forwards, self._is_untried = True, False

    def take_forwards_back(self) -> None:
        """Forget the forwards so far, because they turned out to be for training."""
        self._has_forwards = False

    def seen(self, at_ns: int) -> None:
        """Note that the latest part of the validation ended at ``at_ns``."""
        self._seen_ns = at_ns

    def end(self) -> None:
        """End the open validation, if any; a validation without a forward is cancelled."""
        if not self.is_open:
            return
        self.is_open = False
        if self._has_forwards:
            self._sink.end_validation(self._seen_ns)
        else:
            self._sink.cancel_validation()
