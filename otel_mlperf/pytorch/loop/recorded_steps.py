"""Recording of inferred steps and validations in the active run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from otel_mlperf import names
from otel_mlperf.recorder.api.epochs import Phase
from otel_mlperf.recorder.api.span import active

if TYPE_CHECKING:
    from otel_mlperf.pytorch.loop.step_batches import Content
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep


class RecordedSteps:
    """Recorder of a loop's steps as steps of the active run, and of its validations as phases."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._step: OpenStep | None = None
        self._validation: Phase | None = None
        self._done_before: tuple[Recorder, int] | None = None
        """Recorder, and number of steps done before the training was resumed."""

    def begin(self, at_ns: int, epoch: int | None) -> None:
        """Open a step backdated to ``at_ns``, unless the program reports its steps itself.

        An epoch reported by the program takes precedence over ``epoch`` (None: unknown).
        """
        self._recorder, self._step = active(), None
        if self._recorder is not None:
            if self._done_before is not None:
                self._continue_numbering(self._recorder)
            self._step = self._recorder.stepping.infer(at_ns, epoch)

    def complete(self, at_ns: int) -> None:
        """Mark the open step as complete: it now counts as a step, and may end at ``at_ns``."""
        if self._step is not None:
            self._step.whole_ns = at_ns

    def count(self, content: Content) -> None:
        """Set the number of samples and elements of the open step's batches so far."""
        if self._step is not None:
            self._step.samples, self._step.elements = content

    def end(self, at_ns: int) -> None:
        """End the open step, backdated to ``at_ns``."""
        if self._recorder is not None and self._step is not None:
            self._recorder.stepping.end(self._step, at_ns)

    def cancel(self) -> None:
        """Cancel the open step. Its number is used again, and its time counts as outside steps."""
        if self._recorder is not None and self._step is not None:
            self._recorder.stepping.cancel(self._step)

    def go_on_from(self, number: int) -> None:
        """Store the number of steps done before the training was resumed."""
        recorder, known = active(), self._done_before
        if known is not None and known[0] is recorder:
            number = max(number, known[1])
        self._done_before = None if recorder is None else (recorder, number)

    def _continue_numbering(self, recorder: Recorder) -> None:
        """Continue the step numbers of a resumed training, unless the program reports its steps."""
        known, self._done_before = self._done_before, None
        stepping = recorder.stepping
        if known is None or known[0] is not recorder or stepping.are_reported:
            return
        stepping.set_next_number(max(known[1], stepping.next_number()))

    def begin_validation(self, at_ns: int) -> None:
        """Open a validation phase backdated to ``at_ns``.

        Nothing is opened if the program is in another phase than training, or if the program
        reports its steps itself: these would be inside the phase.
        """
        recorder = active()
        if recorder is None or recorder.stepping.are_reported:
            return
        if recorder.registry.phase == names.TRAIN:
            self._validation = Phase(names.VALIDATE)
            section = self._validation.__enter__()
            # Removed from the outer sections: a reported step must take the slow path, which ends
            # the validation.
            recorder.parents.outer.remove(section)
            # The phase must not contain work between steps, such as writing a profile.
            recorder.sections.backdate(section, max(at_ns, recorder.stepping.busy_ns))
            recorder.stepping.end_inferred = self._give_way

    def end_validation(self, at_ns: int) -> None:
        """End the open validation, backdated to ``at_ns``."""
        validation = self._take_validation(at_ns)
        if validation is not None:
            validation.end(at_ns)

    def cancel_validation(self) -> None:
        """Cancel the open validation, because its content belongs to the surrounding section."""
        validation = self._take_validation(0)
        if validation is not None:
            validation.cancel()

    def _give_way(self) -> None:
        self.end_validation(time.monotonic_ns())

    def _take_validation(self, end_ns: int) -> Phase | None:
        validation, self._validation = self._validation, None
        recorder = active()
        if recorder is not None:
            recorder.stepping.validated_ns = end_ns  # first: the sampler reads it afterwards
            recorder.stepping.end_inferred = None
        return validation
