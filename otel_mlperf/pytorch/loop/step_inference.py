"""Step inference for a training loop that does not report its steps.

Hooks report the loop's calls of torch: batches, forwards, backwards, updates, checkpoints. A step
is the work of one round of updates, accumulated micro-batches included.

- A step starts with the request of a batch from a DataLoader, or else with its first forward that
  records gradients.
- A step ends with the next request to that loader after the update, or with other work, a
  validation or a checkpoint after the update.
- Work without an update is not a step: the step is cancelled, and its time counts as outside steps.

Forwards without gradients between steps, and their batches, are a validation. The exception is a
model that collects training data in training mode, such as a policy.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

from otel_mlperf.pytorch.loop.epochs_and_validations import EpochCount, Validation
from otel_mlperf.pytorch.loop.inferred_step import InferredStep, StepSink
from otel_mlperf.pytorch.loop.participants import DataSets, Learners

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """Steps and validations of one loop, inferred from its calls of torch."""

    def __init__(self, sink: StepSink, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.step = InferredStep(sink, clock)
        self.depth = 0
        """Number of open moments; inside a moment, no step or validation starts or ends."""
        self.own_ns = 0
        """Time that moments have cost since it was last counted as overhead."""
        self.updates = 0
        self.switched_ns = 0
        """Time of a switch to evaluation mode right before the reported moment; 0: none."""
        self.validation = Validation(sink)
        self._learners, self._data = Learners(), DataSets()
        self._dataset = self._other_dataset = 0
        """Numbers of the data sets of the last training batches, and of the last other batches."""
        self._evaluated: weakref.ref[Any] | None = None
        """Module that was last called in evaluation mode with gradients."""
        self._holders = 0

    # -- batches --------------------------------------------------------------------------------

    def batch_requested(self, source: Any, data: Any, *, records: bool) -> None:
        """Assign the next batch to training or a validation; start and end steps accordingly.

        Args:
            source: the loader's iterator, from which a batch is about to be requested.
            data: the data set that the loader reads.
            records: whether gradients are being recorded.
        """
        if self._holders or self.depth:
            return
        dataset = self._data.number_of(data)
        if self._feeds_training(source, dataset, records):
            if self.validation.is_open:
                self.validation.end()
            self._feed(source, dataset)
        else:
            self._other_dataset = dataset
            self._validate(weakref.ref(source))

    def _feed(self, source: Any, dataset: int) -> None:
        step = self.step
        if step.is_open:
            if step.round.done:
                step.end_before_batch()
            elif step.is_abandoned:
                step.cancel()
        self._dataset = dataset
        step.epochs.ask(source)
        step.begin_with(source)

    def batch_received(self, source: Any, samples: int | None, batch: object = None) -> None:
        """Add a batch with ``samples`` samples (None: unknown) to the open validation or step."""
        if self.validation.is_open:
            self.validation.add_batch()
        else:
            self.step.give(source, samples, batch)

    def loader_ran_out(self, source: Any, *, is_ahead: bool = False) -> bool:
        """Note that a loader has no more batches; cancel a step that only read batches ahead.

        Args:
            source: the loader's iterator.
            is_ahead: whether the program requests one batch ahead from the loader.

        Returns:
            True if the request that found no batch still counts as a wait for data, because a batch
            that was received earlier has not been trained on yet.
        """
        self.step.epochs.run_out(source)
        if self.step.is_read_whole(source) and not is_ahead and not self.validation.is_open:
            self.step.cancel_read_ahead()
            return False
        return self.step.run_out(source, is_validated=self.validation.is_open)

    # -- work -----------------------------------------------------------------------------------

    def forward_begins(self, module: Any, *, records: bool) -> None:
        """Assign a call of an outermost module to a step or a validation.

        ``records``: whether gradients are being recorded.
        """
        if self._holders:
            return
        if records and self._learners.learns(module):
            self._work(module)
            self._learners.add(module)
            self.step.is_after_backward, self._evaluated = False, None
        elif self._learners.tries(module):
            if records:
                self._evaluated = weakref.ref(module)
            self._try(module)

    def _try(self, module: Any) -> None:
        """Assign a call that does not train its module to a validation, a step or neither."""
        is_fed = self.step.batches.is_waiting or self.validation.has_loader
        if self._learners.collects(module, is_fed=is_fed):
            if not self.depth and not self.step.source.is_there:
                self._collect(module)
        elif self._learners.teaches(module) and not self._is_in_loop(is_fed=is_fed):
            self._be_taught(module)
        elif not self.validation.is_open and self._is_validation(module):
            # Its loader may have been mistaken for a training loader.
            self._validate(self.step.source.reference if self.step.batches.is_waiting else None)
        if self.validation.is_open:
            self.validation.add_forward()
            if not self.validation.has_loader:
                self._learners.hear(module)
        else:
            self.step.is_doubtful |= self.step.batches.is_waiting

    def _collect(self, module: Any) -> None:
        """End an updated step, because a call collects training data or uses a target network."""
        if not self.validation.has_loader:
            self.validation.end()
        is_over = self.step.round.is_over_for(module, self._learners.is_new, records=False)
        if is_over and self.step.is_open:
            self.step.end()

    def _is_in_loop(self, *, is_fed: bool) -> bool:
        """Return whether a loader, moment or validation determines what a forward belongs to."""
        return is_fed or bool(self.depth) or self.validation.is_open or self.step.source.is_there

    def _be_taught(self, module: Any) -> None:
        if self.step.round.is_over_for(module, self._learners.is_new, records=False):
            self.step.end()
        if not self.step.is_open and not self.step.is_idle:
            self.step.begin()

    def backward_begins(self) -> None:
        """Note that a backward pass starts, and assign it to a step."""
        if self._holders:
            return
        evaluated = self._evaluated() if self._evaluated is not None else None
        if evaluated is not None:  # the module is trained, in spite of its mode
            self._learners.add_evaluating(evaluated)
            self._evaluated = None
            self.validation.take_forwards_back()
        self._work(None)
        self.step.batches.passes += 1
        self.step.is_after_backward = True

    def update_begins(self, optimizer: Any) -> None:
        """End the validation; start a step if none is open, or if the optimizer updates again."""
        self.step.is_idle = False
        if self._holders or self.depth:
            return
        if self.validation.is_open:
            self.validation.end()
        if not self.step.is_open:
            self.step.begin()
        elif id(optimizer) in self.step.round.done:
            self.step.round.repeat()
            self.step.end()
            self.step.begin()

    def updated(self, optimizer: Any) -> None:
        """Count an update that has ended, or that a gradient scaler has skipped."""
        self.updates += 1
        step = self.step
        step.round.add(optimizer)
        step.is_updating = step.is_open
        if step.is_open and self._dataset not in self._data.trained:
            self._data.train(self._dataset)

    def optimizer_made(self, optimizer: Any) -> None:
        """Forget which module was trained last, because a new optimizer may train another model."""
        self.step.round.made(optimizer)
        self._learners.forget_latest()
        if self.step.is_open and not self._data and not self.step.batches.passes:
            self.step.cancel()  # a batch was only inspected, or a model tried out

    def optimizer_restored(self, updates: int) -> None:
        """Continue the step numbers from ``updates``, as counted by a restored optimizer."""
        if not self._holders:
            self.step.go_on_from(updates)

    def epoch_begins(self, number: int) -> None:
        """Use a framework's epoch number for the steps that start from now on."""
        self.step.epochs.report(number)

    def captured(self) -> None:
        """Cancel the open step, because its work was only captured for a CUDA graph."""
        if self.step.is_open and not self.depth:
            self.step.cancel()

    def failed(self) -> None:
        """Note that an exception has left a moment."""
        self.step.has_failed = True

    def over(self, at_ns: int) -> None:
        """Note that a moment has ended at ``at_ns``."""
        self.step.over(at_ns)
        if self.validation.is_open:
            self.validation.seen(at_ns)

    def break_off(self) -> None:
        """End the validation and an updated step, because a checkpoint or other work starts."""
        if self._holders or self.depth:
            return
        self.validation.end()
        if self.step.is_updated:
            self.step.end()

    def evaluation_begins(self) -> None:
        """End the previous validation, because a framework's own evaluation starts."""
        if not self._holders and not self.depth:
            self.validation.end()

    # -- end and suspension of inference ---------------------------------------------------------

    def give_up(self) -> None:
        """End or cancel open steps and validations, because another source reports the steps."""
        self.validation.end()
        if self.step.is_open:
            if self.step.round.done:
                self.step.end_late()
            else:
                self.step.cancel()

    def finish(self) -> None:
        """End the validation and an updated step; the end of the run ends any other step."""
        self.validation.end()
        if self.step.is_updated:
            self.step.end_late()
        self.step.is_open = False
        self.step.epochs = EpochCount()

    def hold(self) -> None:
        """Suspend inference while another source reports the steps, until ``release``."""
        self._holders += 1
        self.give_up()

    def release(self) -> None:
        """End one suspension by ``hold``; inference resumes when none is left."""
        self._holders -= 1

    # -- inference -------------------------------------------------------------------------------

    def _feeds_training(self, source: Any, dataset: int, records: bool) -> bool:
        if not records or (self.validation.is_open and self.validation.is_fed_by(source)):
            return False
        is_untrained = self.step.is_open and self.step.is_doubtful and not self.step.batches.passes
        if is_untrained and source in self.step.source:
            return False
        # A loop may switch back to training only after it has its batch.
        return dataset in self._data.trained or not self._learners.are_evaluated

    def _is_validation(self, module: Any) -> bool:
        if not self.step.is_open or self.step.is_updated:
            return True
        is_known = module in self._learners
        return is_known and (self.step.is_after_backward or self._learners.are_evaluated)

    def _work(self, module: Any) -> None:
        """Assign a computation for an update to a step; ``module`` is None for a backward pass."""
        step = self.step
        if not self.depth:
            if self.validation.is_open or self._learners.heard:
                self._end_validation_for(module)
            is_another = step.round.awaits_first and step.round.is_over_for(
                module, self._learners.is_new, is_fed=step.source.is_there
            )
            if not step.is_open:
                self._begin_step()
            elif is_another:
                step.end()
                step.begin()
        step.compute(is_inside=bool(self.depth))

    def _end_validation_for(self, module: Any) -> None:
        """End the validation, because training goes on with a call of ``module``."""
        if self.validation.is_untried:
            self._data.train(self._other_dataset)  # its batches are for training after all
        if self._learners.heard and self._learners.are_teacher_calls(module, self.step.ended):
            self.validation.take_forwards_back()
        self.validation.end()

    def _begin_step(self) -> None:
        if not self.step.is_idle:
            self.step.begin()

    def _validate(self, source: weakref.ref[Any] | None) -> None:
        """Start or continue a validation with batches of ``source`` (None: without a loader)."""
        if self.depth or (self.validation.is_open and not self._is_another(source)):
            return
        self.validation.end()
        if self.step.round.is_expected or self._learners:
            self.step.now_ns = self.switched_ns or self.step.now_ns
            if self.step.is_updated:
                self.step.end()
            self.validation.begin(source, self.step.now_ns)

    def _is_another(self, source: weakref.ref[Any] | None) -> bool:
        """Return whether the validation changes loaders right after a switch to evaluation."""
        if source is None or not self.switched_ns or not self.validation.has_loader:
            return False
        return not self.validation.is_fed_by(source())
