"""Inferred steps of a loop: their start and end, batches, computations and updates.

A step starts with a reported moment. The step ends with a later moment, or its end is backdated to
the end of the update or to the time at which the loop was left. Objects of the program are only
referenced weakly.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mlperf.pytorch.loop.epochs_and_validations import EpochCount, ValidationSink
from otel_mlperf.pytorch.loop.step_batches import Content, StepBatches
from otel_mlperf.recorder.core.interrupts import raises_afterwards

if TYPE_CHECKING:
    from collections.abc import Callable


class LoopSource:
    """Iterator of the open or previous step; ``left`` is called when the iterator is deleted."""

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self.reference: weakref.ref[Any] | None = None
        self.is_over = False

    def follow(self, source: Any) -> None:
        """Set the iterator that feeds steps from now on."""
        self.is_over = False
        self.reference = weakref.ref(source, self._on_deleted)

    def forget(self) -> None:
        """Forget the iterator, because it feeds no steps."""
        self.reference, self.is_over = None, False

    def begin_step(self) -> Any:
        """Return the iterator of a step that starts; None if there is none, or it was deleted."""
        iterator = self.reference() if self.reference is not None else None
        if iterator is None:
            self.reference = None
        return iterator

    def __contains__(self, source: object) -> bool:
        return self.reference is not None and self.reference() is source

    @property
    def is_there(self) -> bool:
        """Return whether the loop over the iterator continues: it will request another batch."""
        return not self.is_over and self.reference is not None and self.reference() is not None

    @raises_afterwards
    def _on_deleted(self, reference: object) -> None:
        # The loop was left, by ``break`` or after its last batch. Any thread may call this.
        if reference is self.reference:
            self._left()


_NO_OPTIMIZER: Final = -1
_MAX_TURNS: Final = 256
_DELAY: Final = 2
"""Maximum number of consecutive updates by one optimizer while another awaits its turn."""


class UpdateRound:
    """Updates of one step; optimizers that take turns update once each per step.

    The first module called after an update predicts the next optimizer: the optimizer that updated
    after the same call in an earlier round. So an optimizer that takes a turn only occasionally
    adds no step. Work that starts after many consecutive updates of one optimizer is another loop,
    unless other facts contradict this.
    """

    def __init__(self) -> None:
        self._unused: dict[int, weakref.ref[Any]] = {}
        """Optimizers that were created and have not updated anything yet, by ``id()``."""
        self._due: set[int] = set()
        """Optimizers whose updates a step waits for, as observed in the previous step."""
        self.done: set[int] = set()
        """Optimizers that have updated something in this step."""
        self.is_expected = False
        """Whether the program has created or used an optimizer."""
        self._followed: dict[tuple[int, int], int] = {}
        """Optimizer that updates next, by the first module called after an update and the optimizer
        of that update."""
        self._latest = self._first = _NO_OPTIMIZER
        """Optimizer of the last update, and the module that was called first since then."""
        self.awaits_first = True
        """Whether no module was called since the last update."""
        self._in_a_row = 0
        """Number of consecutive updates by the optimizer of the last update."""
        self._follows_batch = False
        """Whether the first call since the last update follows the batch that starts a step."""
        self._is_another_loop = False
        """Whether the work since the last update is another loop, not expected to recur."""

    @property
    def is_whole(self) -> bool:
        """Return whether all awaited optimizers have updated, so that a new step may start."""
        return bool(self.done) and self.done >= self._due

    def is_over_for(
        self,
        module: object,
        is_new: Callable[[Any], bool],
        *,
        records: bool = True,
        is_fed: bool = False,
    ) -> bool:
        """Return whether work that starts is outside the step; True at most once per update.

        Args:
            module: the module that computes; None: a backward pass.
            is_new: returns whether a module was never called before.
            records: whether gradients are recorded.
            is_fed: whether the loop will request another batch from a loader, which ends the step.
        """
        if not self.awaits_first:
            return False
        self.awaits_first, self._first = False, (first := id(module) * 2 + records)
        self._is_another_loop = False
        following = self._followed.get((first, self._latest))
        if following is not None:
            return following in self.done
        if not self._unused:
            following = self._followed.get((first, _NO_OPTIMIZER))
        if following in self.done:
            return True
        if is_fed:
            return False
        if self._in_a_row > _DELAY and self.done:
            is_known = following is None and self._unused and (module is None or not is_new(module))
            self._is_another_loop = not is_known
        return self._is_another_loop or (following is None and self.is_whole)

    def made(self, optimizer: Any) -> None:
        """Add an optimizer that the user's program has just created."""
        self.is_expected, number = True, id(optimizer)
        forget = raises_afterwards(lambda _: self._unused.pop(number, None))
        self._unused[number] = weakref.ref(optimizer, forget)

    def begin(self) -> None:
        """Start the round of a new step."""
        self.done = set()
        self._follows_batch = self.awaits_first

    def add(self, optimizer: object) -> None:
        """Add an optimizer that has updated its parameters."""
        self.is_expected, number = True, id(optimizer)
        if not self.done and number not in self._due:
            # The first round of a loop: unused optimizers may take turns with this one.
            self._due = {number, *self._unused}
        self._unused.pop(number, None)
        self.done.add(number)
        self._remember(number)

    def _remember(self, number: int) -> None:
        if not (self.awaits_first or self._follows_batch):
            if len(self._followed) > _MAX_TURNS:  # the program creates new modules each time
                self._followed.clear()
            if not self._is_another_loop:
                self._followed[self._first, self._latest] = number
            self._followed[self._first, _NO_OPTIMIZER] = number
        self._in_a_row = self._in_a_row + 1 if number == self._latest else 1
        self._latest, self.awaits_first, self._follows_batch = number, True, False

    def repeat(self) -> None:
        """Stop waiting for other optimizers, because one optimizer updates twice before them."""
        self._due = {*self.done, *self._unused}


_PATIENCE: Final = 10_000
"""Maximum number of forwards and backwards of a step before its update."""


class StepSink(ValidationSink, Protocol):
    """Protocol of a receiver of steps and validations."""

    def begin(self, at_ns: int, epoch: int | None) -> None:
        """Open a step backdated to ``at_ns``. ``epoch``: the step's epoch; None if unknown."""

    def complete(self, at_ns: int) -> None:
        """Mark the open step as complete: it now counts as a step, and may end at ``at_ns``."""

    def count(self, content: Content) -> None:
        """Set the number of samples and elements of the open step's batches so far."""

    def end(self, at_ns: int) -> None:
        """End the open step, backdated to ``at_ns``."""

    def cancel(self) -> None:
        """Cancel the open step. Its number is used again, and its time counts as outside steps."""

    def go_on_from(self, number: int) -> None:
        """Set the number of the next step, unless that number is higher than ``number`` already."""


class InferredStep:
    """Inferred steps of one loop; at most one is open at a time."""

    def __init__(self, sink: StepSink, clock: Callable[[], int]) -> None:
        self._sink, self._clock = sink, clock
        self.now_ns = 0
        """Start time of the moment being reported, or end time of the last reported one."""
        self.round, self.batches = UpdateRound(), StepBatches()
        self.source = LoopSource(self._left)
        self.epochs = EpochCount()
        self.is_open = False
        self.is_after_backward = self.is_doubtful = self.has_failed = False
        """Whether the last event of the open step was a backward, whether its batch was only used
        without training, and whether an exception occurred."""
        self.is_idle = False
        """Whether steps are suspended until the next update."""
        self.is_updating = False
        """Whether the current moment has updated parameters."""
        self._whole_ns = self._left_ns = 0
        """Time of the last update of the step, and time at which its loop was left."""
        self._waited = 0
        self.ended = 0

    @property
    def is_updated(self) -> bool:
        """Return whether a step is open and has had an update, so that it may end."""
        return self.is_open and bool(self.round.done)

    def go_on_from(self, number: int) -> None:
        """Set the number of steps done before a training was resumed; ignored if a step is open."""
        if not self.is_open:
            self.epochs.resume()
            self._sink.go_on_from(number)

    # -- start and end ---------------------------------------------------------------------------

    def begin(self, *, is_first: bool = False) -> None:
        """Start a step now. ``is_first``: whether the step's loader has provided no batch yet."""
        source = self.source.begin_step()
        self.is_open = True
        self._left_ns = self._waited = 0
        self.is_after_backward = self.is_doubtful = self.has_failed = False
        self.round.begin()
        self.batches.begin(is_first=is_first)
        self._sink.begin(self.now_ns, self.epochs.begin_step(source))

    def begin_with(self, source: Any) -> None:
        """Start a step with a request to ``source``, unless one is open or steps are suspended."""
        is_first = self.source.is_over or source not in self.source
        if not self.is_open and not self.is_idle:
            if is_first:
                self.source.follow(source)
            self.begin(is_first=is_first)
        elif self.source.is_over:  # the open step accumulates gradients over two epochs
            self.source.follow(source)

    def end(self, at_ns: int = 0) -> None:
        """End the step at ``at_ns``; if that is 0, at the time its loop was left, or else now."""
        self.is_open = False
        self.ended += 1
        self.epochs.end_step()
        content = self.batches.content
        self.batches.end(len(self.round.done))
        if self.batches.content is not content:  # one batch belongs to the next step
            self._sink.count(self.batches.content)
        self._sink.end(at_ns or min(self._left_ns or self.now_ns, self.now_ns))

    def end_before_batch(self) -> None:
        """End the step, because a batch is requested; backdated if the loader was exhausted."""
        self.end(self._whole_ns if self.source.is_over and not self._left_ns else 0)

    def end_late(self) -> None:
        """End the step, backdated to when its loop was left, or else to its last update's end."""
        self.end(self._left_ns or self._whole_ns)

    def cancel(self) -> None:
        """Cancel the open step."""
        self.is_open = False
        self.epochs.cancel_step()
        self._sink.cancel()

    def _left(self) -> None:
        """Note that the loop over the loader was left. Any thread may call this."""
        if self.is_updated:
            self._left_ns = self._clock()
            self._sink.complete(self._left_ns)

    @property
    def is_abandoned(self) -> bool:
        """Return whether the loop of an open step without an update seems to have ended."""
        if self.source.reference is None:
            return True
        return not self.source.is_there and (self.has_failed or not self.batches.passes)

    # -- content ---------------------------------------------------------------------------------

    def give(self, source: Any, samples: int | None, batch: object) -> None:
        """Add a batch of iterator ``source``; ``samples``: number of samples, None if unknown."""
        if self.is_open:
            self.batches.give(samples, is_own=source in self.source, batch=batch)
            self._sink.count(self.batches.content)

    @property
    def may_have_skipped(self) -> bool:
        """Return whether the user's program deleted a batch before computing anything from it."""
        batches = self.batches
        is_possible = batches.untouched and self.is_open and not self.round.done
        return bool(is_possible) and batches.may_be_skipped

    def skip_batches(self) -> None:
        """Cancel the step, because the batches so far were skipped and belong to no step."""
        self.batches.skip()
        self.cancel()

    def is_read_whole(self, source: Any) -> bool:
        """Return whether the open step has read all batches of ``source`` and used none.

        At least two batches are required: a single unused batch may have been requested ahead.
        """
        batches = self.batches
        return (
            self.is_open and source in self.source and batches.given > 1 and bool(batches.untouched)
        )

    def cancel_read_ahead(self) -> None:
        """Cancel the step, because the program read batches before the loop that trains on them."""
        self.cancel()
        self.source.forget()
        self.batches.begin(is_first=True)

    def run_out(self, source: Any, *, is_validated: bool) -> bool:
        """Note that iterator ``source`` has no more batches; cancel a step without a batch.

        ``is_validated`` means that the batches of ``source`` were not for training. Return whether
        the request counts as a wait nevertheless, because a batch received before is yet to be
        trained on.
        """
        is_own = self.is_open and source in self.source
        if not is_own or is_validated:
            self.source.is_over |= is_own
            return False
        is_wait = self.batches.is_waiting and not self.is_doubtful
        if is_wait or self.batches.passes:
            self.source.is_over = True
            self.batches.release()
            self._sink.count(self.batches.content)
        else:
            self.cancel()
        return is_wait

    def compute(self, *, is_inside: bool) -> None:
        """Note a computation that leads to the step's update; it uses all batches received so far.

        After too many computations without an update, cancel the step. ``is_inside``: whether the
        computation is part of another moment, and therefore does not count.
        """
        self.is_doubtful = self.batches.is_waiting = False
        if self.batches.untouched:
            self.batches.untouched = []
        if self.is_open and not is_inside and not self.round.done:
            self._waited += 1
            if self._waited > _PATIENCE:
                self.is_idle = True
                self.cancel()

    def over(self, at_ns: int) -> None:
        """Note that a moment ended at ``at_ns``; if it updated parameters, the step is complete."""
        self.now_ns = at_ns
        if self.is_updating:
            self.is_updating, self._whole_ns = False, at_ns
            self._sink.complete(at_ns)
