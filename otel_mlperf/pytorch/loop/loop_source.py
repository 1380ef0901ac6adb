"""Which loader's iterator feeds the open step, and is its loop still there?"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from otel_mlperf.recorder.core.interrupts import raises_afterwards

if TYPE_CHECKING:
    from collections.abc import Callable


class LoopSource:
    """The iterator that the open step began with, or the one before it."""

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self.reference: weakref.ref[Any] | None = None
        self.is_over = False
        """Whether it has no more batches."""

    def follow(self, source: Any) -> None:
        """Steps are fed by this iterator from now on."""
        self.is_over = False
        self.reference = weakref.ref(source, self._gone)

    def forget(self) -> None:
        """It feeds no steps."""
        self.reference, self.is_over = None, False

    @property
    def current(self) -> Any:
        """The iterator; None: there is none, or it is gone."""
        return self.reference() if self.reference is not None else None

    def __contains__(self, source: object) -> bool:
        return self.reference is not None and self.reference() is source

    def forget_gone(self) -> None:
        """A step begins: one that has gone feeds no more."""
        if self.reference is not None and self.reference() is None:
            self.reference = None

    @property
    def is_there(self) -> bool:
        """Whether the loop over it goes on, so that it will be asked again."""
        return not self.is_over and self.reference is not None and self.reference() is not None

    @raises_afterwards
    def _gone(self, gone: object) -> None:
        # By ``break``, or after its last batch. Any thread may say so.
        if gone is self.reference:
            self._left()
