"""Where do the steps of a training loop begin and end that says nothing about itself?

Hooks report what torch shows: batches, forwards, backwards, updates, checkpoints. A step is the
work of one round of updates, accumulated micro-batches included. It begins where the loop asks a
DataLoader for a batch, else with its first forward that records gradients. It stays open until that
loader is asked again after the update; other work, a validation or a checkpoint after the update
end it too. What never comes to an update is no step: it is taken back, and its time is outside.

Forwards that record no gradients between steps, and what a loader gives to them, are a validation;
but for those of a model that, in training mode, collects what it is to learn from.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mlperf.pytorch.loop.loop_source import LoopSource
from otel_mlperf.pytorch.loop.participants import DataSets, Learners, UpdateRound
from otel_mlperf.pytorch.loop.step_batches import StepBatches
from otel_mlperf.pytorch.loop.validation import Validation, ValidationSink

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE: Final = 10_000
"""Forwards and backwards that a step waits for its update: all that is inside waits with it."""


class StepSink(ValidationSink, Protocol):
    """Where steps and validations are recorded."""

    def begin(self, at_ns: int) -> None:
        """Opens a step as of then."""

    def complete(self, at_ns: int) -> None:
        """The open step was whole at that time: it may end there, and is taken back no more."""

    def count(self, samples: int | None) -> None:
        """The open step has had so many samples so far."""

    def end(self, at_ns: int) -> None:
        """Ends the open step as of then."""

    def cancel(self) -> None:
        """Forgets the open step: its number is not used up, its time is outside."""


class Loop:
    """The steps of one loop after the other, inferred from what torch shows."""

    def __init__(self, steps: StepSink, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._steps, self._clock = steps, clock
        self.now_ns = 0
        """When the moment began that is being told of, or was over that was told of last."""
        self.depth = 0
        """Moments that are open: inside one nothing begins or ends."""
        self.validation = Validation(steps)
        self._learners, self._round, self._batches = Learners(), UpdateRound(), StepBatches()
        self._source = LoopSource(self._left)
        self._is_open = False
        self._data = DataSets()
        self._dataset = self._asked = 0
        """What the last batches are of that were for training, and of the others."""
        self._whole_ns = self._left_ns = 0
        """When the step was updated last, when its loop was left."""
        self._is_after_backward = self._is_doubtful = self._has_failed = False
        """Of the open step: a backward came last; no forward came that trains; it has failed."""
        self._is_updated = False
        """Whether the moment that is open has updated parameters."""
        self._evaluated: weakref.ref[Any] | None = None
        """The module that was called in evaluation mode last, with gradients."""
        self._waited = 0
        self._is_idle = False
        """Whether steps wait for an update that shows that there are any."""
        self._holders = 0

    # -- batches --------------------------------------------------------------------------------

    def batch_asked(self, source: Any, data: Any, *, records: bool) -> None:
        """A loader's iterator is about to be asked for a batch.

        Args:
            source: the iterator.
            data: the data set that it reads.
            records: whether gradients are being recorded.
        """
        if self._holders or self.depth:
            return
        dataset = self._data.number_of(data)
        if self._feeds_training(source, dataset, records):
            self.validation.end()
            self._feed(source, dataset)
        else:
            self._asked = dataset
            self._validate(weakref.ref(source))

    def _feed(self, source: Any, dataset: int) -> None:
        """A batch to train on is asked for."""
        if self._is_open and self._round:
            self._end(0 if self._left_ns or not self._source.is_over else self._whole_ns)
        elif self._is_open and self._is_abandoned():
            self._cancel()
        self._dataset = dataset
        is_first = self._source.is_over or source not in self._source
        if not self._is_open and not self._is_idle:
            if is_first:
                self._source.follow(source)
            self._begin(is_first=is_first)
        elif self._source.is_over:  # gradients are left over from the epoch before
            self._source.follow(source)

    def batch_given(self, source: Any, samples: int | None, batch: object = None) -> None:
        """The batch is there, of so many samples if that is known."""
        if self.validation.is_open:
            self.validation.add_batch()
        elif self._is_open:
            self._batches.give(samples, is_own=source in self._source, batch=batch)
            self._steps.count(self._batches.samples)

    @property
    def may_have_skipped(self) -> bool:
        """Whether the program has let go of a batch before anything was computed."""
        return self._is_open and not self._round and self._batches.may_be_skipped

    def batches_skipped(self) -> None:
        """Those that were given so far were passed over: they are of no step."""
        self._batches.skip()
        self._cancel()

    def loader_ran_out(self, source: Any) -> bool:
        """The batch that was asked for does not exist.

        Returns:
            Whether that was a wait all the same: the last batch was given before, and is still to
            be trained on.
        """
        is_own = self._is_open and source in self._source
        if self.validation.is_open:
            self._source.is_over |= is_own
            return False
        if not is_own:
            return False
        is_wait = self._batches.is_waiting and not self._is_doubtful
        if is_wait or self._batches.passes:
            self._source.is_over = True
            self._batches.release()
            self._steps.count(self._batches.samples)
        else:
            self._cancel()
        return is_wait

    # -- work -----------------------------------------------------------------------------------

    def forward_begins(self, module: Any, *, records: bool) -> None:
        """A module is called that no other calls."""
        if self._holders:
            return
        if records and self._learners.learns(module):
            self._work(module)
            self._learners.add(module)
            self._is_after_backward, self._evaluated = False, None
        elif self._learners.counts(module):
            if records:
                self._evaluated = weakref.ref(module)
            self._try(module)

    def _try(self, module: Any) -> None:
        """A model is called and nothing is learned from it."""
        is_fed = self._batches.is_waiting or self.validation.has_loader
        if self._learners.collects(module, is_fed=is_fed):
            if not self.depth and not self._source.is_there:
                self._collect(module)
        elif not self.validation.is_open and self._is_validation(module):
            # Its loader may have been taken for one to train on.
            self._validate(self._source.reference if self._batches.is_waiting else None)
        if self.validation.is_open:
            self.validation.add_forward()
        else:
            self._is_doubtful |= self._batches.is_waiting

    def _collect(self, module: Any) -> None:
        """A model says something that it may learn from later, or a target does."""
        if not self.validation.has_loader:
            self.validation.end()
        if self._round.is_over_for(module, records=False) and self._is_open:
            self._end()

    def backward_begins(self) -> None:
        """Gradients are about to be computed."""
        if self._holders:
            return
        evaluated = self._evaluated() if self._evaluated is not None else None
        if evaluated is not None:  # it learns, whatever its mode says
            self._learners.add_evaluating(evaluated)
            self._evaluated = None
            self.validation.take_forwards_back()
        self._work(None)
        self._batches.passes += 1
        self._is_after_backward = True

    def update_begins(self, optimizer: Any) -> None:
        """An optimizer is about to step, or to call the closure that computes its gradients."""
        self._is_idle = False
        if self._holders or self.depth:
            return
        self.validation.end()
        if not self._is_open:
            self._begin()
        elif optimizer in self._round:
            self._round.repeat()
            self._end()
            self._begin()

    def updated(self, optimizer: Any) -> None:
        """It has, or its scaler has left the step out because gradients were infinite."""
        self._round.add(optimizer)
        if self._is_open:
            self._data.train(self._dataset)
            self._is_updated = True

    def optimizer_made(self, optimizer: Any) -> None:
        """The program has made an optimizer: what is trained from now on may be another model."""
        self._round.made(optimizer)
        self._learners.begin_anew()
        if self._is_open and not self._data and not self._batches.passes:
            self._cancel()  # a batch was only looked at, or a model tried out

    def failed(self) -> None:
        """An exception has left a moment."""
        self._has_failed = True

    def over(self, at_ns: int) -> None:
        """A moment was over then."""
        self.now_ns = at_ns
        if self.validation.is_open:
            self.validation.seen(at_ns)
        if self._is_updated:
            self._is_updated, self._whole_ns = False, at_ns
            self._steps.complete(at_ns)

    def saves(self) -> None:
        """A checkpoint is about to be written or read."""
        if self._holders or self.depth:
            return
        self.validation.end()
        if self._is_open and self._round:
            self._end()

    # -- others have the word -------------------------------------------------------------------

    def give_up(self) -> None:
        """The program says itself from now on what its steps are; or there is none any more."""
        self.validation.end()
        if self._is_open:
            if self._round:
                self._end(self._left_ns or self._whole_ns)
            else:
                self._cancel()

    def finish(self) -> None:
        """The run ends: a step that was not updated ends with it, however that is."""
        self.validation.end()
        if self._is_open and self._round:
            self._end(self._left_ns or self._whole_ns)
        self._is_open = False

    def hold(self) -> None:
        """Somebody else says the steps until they have called ``release``."""
        self._holders += 1
        self.give_up()

    def release(self) -> None:
        """They say them no more."""
        self._holders -= 1

    # -- what follows from it -------------------------------------------------------------------

    def _feeds_training(self, source: Any, dataset: int, records: bool) -> bool:
        if not records or self.validation.is_fed_by(source):
            return False
        is_untrained = self._is_open and self._is_doubtful and not self._batches.passes
        if is_untrained and source in self._source:
            return False
        # A loop may switch back to training only after it has its batch.
        return self._data.are_trained(dataset) or not self._learners.are_evaluated

    def _is_validation(self, module: Any) -> bool:
        """Whether a forward that is not trained on is one, and no teacher's or target's."""
        if not self._is_open or self._round:
            return True
        is_known = module in self._learners
        return is_known and (self._is_after_backward or self._learners.are_evaluated)

    def _is_abandoned(self) -> bool:
        """Whether the loop of an open step without an update was left, or never was one."""
        if self._source.reference is None:
            return True
        return not self._source.is_there and (self._has_failed or not self._batches.passes)

    def _work(self, module: Any) -> None:
        """Something is computed for an update, by a module or by a backward pass."""
        if not self.depth:
            if self.validation.is_untried:
                self._data.train(self._asked)  # its batches are for training after all
            self.validation.end()
            is_another = self._round.is_over_for(module, is_fed=self._source.is_there)
            if not self._is_open:
                if not self._is_idle:
                    self._begin()
            elif is_another:
                self._end()
                self._begin()
            elif not self._round:
                self._wait()
        self._batches.compute()
        self._is_doubtful = False

    def _wait(self) -> None:
        self._waited += 1
        if self._waited > _PATIENCE:
            self._is_idle = True
            self._cancel()

    def _left(self) -> None:
        """The loop over the loader was left. Any thread may say so."""
        if self._is_open and self._round:
            self._left_ns = self._clock()
            self._steps.complete(self._left_ns)

    def _begin(self, *, is_first: bool = False) -> None:
        self._source.forget_gone()
        self._is_open = True
        self._left_ns = self._waited = 0
        self._is_after_backward = self._is_doubtful = self._has_failed = False
        self._round.begin()
        self._batches.begin(is_first=is_first)
        self._steps.begin(self.now_ns)

    def _end(self, at_ns: int = 0) -> None:
        """The step ends: then, else when its loop was left, else now."""
        self._is_open = False
        samples = self._batches.samples
        self._batches.end(len(self._round))
        if self._batches.samples != samples:  # one lies ready for the next step
            self._steps.count(self._batches.samples)
        self._steps.end(at_ns or min(self._left_ns or self.now_ns, self.now_ns))

    def _cancel(self) -> None:
        self._is_open = False
        self._steps.cancel()

    def _validate(self, source: weakref.ref[Any] | None) -> None:
        """A validation goes on, or begins, with what an iterator gives or with no loader."""
        if self.validation.is_open or self.depth:
            return
        if self._round.is_expected or self._learners:
            if self._is_open and self._round:
                self._end()
            self.validation.begin(source, self.now_ns)
