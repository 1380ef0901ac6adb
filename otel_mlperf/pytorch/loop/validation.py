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
    """Where validations are recorded."""

    def begin_validation(self, at_ns: int) -> None:
        """Opens a validation as of then: outside steps, even inside one."""

    def end_validation(self, at_ns: int) -> None:
        """Ends it, at a time that has passed."""

    def cancel_validation(self) -> None:
        """It was none."""


class Validation:
    """The validations of one loop, one after the other."""

    def __init__(self, sink: ValidationSink) -> None:
        self._sink = sink
        self.is_open = False
        self._source: weakref.ref[Any] | None = None
        """The iterator whose batches are validated; None: it has no loader."""
        self._has_forwards = self._is_untried = False
        """Whether a forward was seen; whether none was since the last batch."""
        self._seen_ns = 0

    def begin(self, source: weakref.ref[Any] | None, at_ns: int) -> None:
        """It begins then, with batches of that iterator if there is one."""
        self.is_open, self._source = True, source
        self._has_forwards = self._is_untried = False
        self._seen_ns = at_ns
        self._sink.begin_validation(at_ns)

    def is_fed_by(self, source: object) -> bool:
        """Whether one is open that this iterator gives batches to."""
        return self.is_open and self._source is not None and self._source() is source

    @property
    def has_loader(self) -> bool:
        """Whether one is open of batches of a loader."""
        return self.is_open and self._source is not None

    @property
    def is_untried(self) -> bool:
        """Whether nothing was computed from its last batch."""
        return self.is_open and self._is_untried

    def add_batch(self) -> None:
        """A batch is there."""
        self._is_untried = True

    def add_forward(self) -> None:
        """Something was computed."""
        self._has_forwards, self._is_untried = True, False

    def take_forwards_back(self) -> None:
        """What was computed was for training."""
        self._has_forwards = False

    def seen(self, at_ns: int) -> None:
        """A part of it was over then."""
        self._seen_ns = at_ns

    def end(self) -> None:
        """It is over, if one is open."""
        if not self.is_open:
            return
        self.is_open = False
        if self._has_forwards:
            self._sink.end_validation(self._seen_ns)
        else:
            self._sink.cancel_validation()
