"""Assignment of batches to steps when batches are requested one ahead.

Hugging Face Trainer, accelerate and Lightning may request the next batch before they train on the
current one, to detect the last batch. The first step of such a pass receives one batch more than it
has backward passes; this batch belongs to the next step.

A resumed training requests batches only to skip them; it releases each batch immediately.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, NamedTuple

from otel_mlperf.recorder.stepping.batch_size import count_elements

_DEPTH: Final = 3
"""Maximum depth of containers around a tensor that are searched."""


class Content(NamedTuple):
    """Number of samples and elements of batches; a number is None if it is unknown."""

    samples: int | None = None
    elements: int | None = None
    """Number of elements of the largest tensor of each batch."""

    def plus(self, more: Content) -> Content:
        """Return the sum with the content of another batch."""
        return Content(_sum(self.samples, more.samples), _sum(self.elements, more.elements))

    def minus(self, less: Content) -> Content:
        """Return this content minus ``less``, the content of one batch."""
        return Content(_rest(self.samples, less.samples), _rest(self.elements, less.elements))


NOTHING: Final = Content()


class StepBatches:
    """Batches of the open step, and the batch that is ready for the next step."""

    def __init__(self) -> None:
        self.given = 0
        """Number of batches received in this step from the loader that it started with."""
        self.passes = 0
        """Number of backward passes of this step."""
        self.content = NOTHING
        self.is_waiting = False
        """Whether a received batch is not used in a computation yet."""
        self.untouched: list[weakref.ref[Any] | None] = []
        """Weak references to batches of the first step that are not used in a computation yet."""
        self._next_content: Content | None = None
        self._latest = NOTHING
        self._is_first = True

    def begin(self, *, is_first: bool) -> None:
        """Start a step. ``is_first``: whether the step's loader has provided no batch yet."""
        self.given = self.passes = 0
        self.content = NOTHING
        self.is_waiting = self._next_content is not None and not is_first
        if is_first:
            self.untouched = []
            self._next_content, self._is_first = None, True

    def give(self, samples: int | None, *, is_own: bool, batch: object = None) -> None:
        """Add a batch; ``is_own``: whether it is from the loader that the step started with."""
        self.is_waiting = True
        if self._is_first:
            self.untouched.append(_reference_to(batch, _DEPTH))
        content = Content(samples, count_elements(batch))
        if is_own:
            self.given += 1
            if self._next_content is not None:
                content, self._next_content = self._next_content, content
            self._latest = content
        self.content = content if self.content is NOTHING else self.content.plus(content)

    @property
    def may_be_skipped(self) -> bool:
        """Return whether a batch of the first step was deleted before any computation.

        It may have been skipped, or copied to a device.
        """
        return any(known is not None and known() is None for known in self.untouched)

    def skip(self) -> None:
        """Forget unused batches that were deleted: the program skipped them.

        Batches that still exist are kept, because a step may still use them.
        """
        self.untouched = [one for one in self.untouched if one is None or one() is not None]

    def end(self, optimizers: int) -> None:
        """End the step.

        ``optimizers``: number of optimizers that updated, each after a backward pass of its own.
        """
        trained = self.passes // max(1, optimizers)
        if self._is_first and trained and self.given == trained + 1:
            self._next_content = self._latest
            self.content = self.content.minus(self._latest)
        elif self._next_content is not None and self.given > trained > 0:
            self.release()  # again more batches than passes: a pass uses several
        self._is_first = False

    def release(self) -> None:
        """Add the ready batch to this step, because no other step follows."""
        if self._next_content is not None:
            self.content = self.content.plus(self._next_content)
            self._next_content = None


def _reference_to(batch: Any, depth: int) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(batch)
    except TypeError:
        if depth and isinstance(batch, list | tuple) and batch:
            return _reference_to(batch[0], depth - 1)
        if depth and isinstance(batch, dict) and batch:
            return _reference_to(next(iter(batch.values())), depth - 1)
        return None


def _sum(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


def _rest(total: int | None, less: int | None) -> int | None:
    return total if total is None or less is None else total - less
