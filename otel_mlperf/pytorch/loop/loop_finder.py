"""Where do the steps of a training loop begin and end that says nothing about itself?

Hooks report batches and optimizer steps as they happen. A step begins where the loop asks a
DataLoader for a batch and ends where it asks for the next one after an optimizer step, so that
accumulated micro-batches and several optimizers are one step. Loops without a DataLoader go from
one step of the same optimizer to its next. A loader that runs out takes the step that it opened
with it: a validation pass, or the end of an epoch, is outside time.
"""

from __future__ import annotations

from typing import Protocol


class StepSink(Protocol):
    """Where steps are recorded."""

    def begin(self) -> None:
        """Opens a step."""

    def end(self) -> None:
        """Ends the open step."""

    def cancel(self) -> None:
        """Forgets the open step: its number is not used up, its time is outside."""


class Loop:
    """The steps of one loop, inferred from its batches and optimizer steps."""

    __slots__ = ("_closer", "_holders", "_is_open", "_is_updated", "_steps")

    def __init__(self, steps: StepSink) -> None:
        self._steps = steps
        self._is_open = False
        self._is_updated = False
        self._closer: int | None = None  # whose next update ends the step
        self._holders = 0

    def batch_asked(self, learns: bool) -> None:
        """A loader is about to be asked for a batch; ``learns``: gradients are being recorded."""
        if self._is_open and self._is_updated:
            self._end()
        elif self._is_open and self._closer is not None:
            self._cancel()  # it began with an update and holds no work of its own yet
        if learns and not self._is_open and not self._holders:
            self._begin(None)

    def loader_ran_out(self) -> None:
        """The batch that was asked for does not exist."""
        if self._is_open and not self._is_updated:
            self._cancel()

    def updated(self, optimizer: int) -> None:
        """The optimizer known by this number changed the parameters."""
        if self._is_open and self._closer == optimizer:
            self._end()
        if not self._is_open:
            if not self._holders:
                self._begin(optimizer)
        elif self._closer is None:
            self._is_updated = True
            self._closer = optimizer

    def give_up(self) -> None:
        """The program says itself from now on what its steps are."""
        if self._is_open:
            self._cancel()

    def hold(self) -> None:
        """Somebody else says the steps until they have called ``release``."""
        self._holders += 1
        self.give_up()

    def release(self) -> None:
        """They say them no more."""
        self._holders -= 1

    def _begin(self, closer: int | None) -> None:
        self._is_open = True
        self._is_updated = False
        self._closer = closer
        self._steps.begin()

    def _end(self) -> None:
        self._is_open = False
        self._steps.end()

    def _cancel(self) -> None:
        self._is_open = False
        self._steps.cancel()
