"""Validations of a watched loop: their start, end and batches.

A validation is open from the first batch or forward that shows it to the next one for training,
and lasts as long as its last part: what follows that part does not belong to it. A validation
without any computation is cancelled: the program only read data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import weakref


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
