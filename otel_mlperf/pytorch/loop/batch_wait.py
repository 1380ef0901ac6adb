"""Waits of a training loop for its batches.

- Each request to a DataLoader's iterator is a wait.
- A generator may make a second request before it yields the first batch, to detect the last batch:
  both requests are one wait.
- The request that finds no more batches is a wait if a received batch is yet to be trained on.
- A loop that waits for a generator also waits while the generator creates the iterator: the loop's
  first wait starts at that creation.
- Batches that a loop skips before its first step belong to no step.
"""

from __future__ import annotations

import opcode
import sys
import time
from inspect import CO_GENERATOR
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment, safely
from otel_mlperf.pytorch.loop_thread import LoopThread
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.instruments.batch_padding import examine_padding
from otel_mlperf.recorder.stepping.batch_size import count_samples

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_mlperf.pytorch.loop.step_inference import Loop
    from otel_mlperf.recorder.sections.section_cases import RecordedSections

_FOR: Final = opcode.opmap["FOR_ITER"]
_Place = tuple[object, int]
"""Position in a generator: its code object, and the offset of the instruction."""


class IteratorMade(LoopMoment):
    """Gate for the creation of a loader's iterator: notes the time, opens no section."""

    made_ns = made_id = 0
    """Time of the last creation, and the section id drawn then.

    The id shows whether other ids were drawn since then.
    """

    def of(self, subject: Any = None) -> Any:
        """Note the time at which an iterator is created."""
        if LoopThread.is_here():
            safely(self._note, time.monotonic_ns())
        return UNSEEN

    def _note(self, now_ns: int) -> None:
        recorder = active()
        if recorder is None:
            return
        self.made_ns, self.made_id = now_ns, recorder.next_id()
        # Created right after a switch to evaluation, for a validation that started with it.
        if self.made_id == LoopMoment.switched_id + 1:
            LoopMoment.switched_id = self.made_id


class BatchWait(LoopMoment):
    """Moment of the wait for a loader's next batch; steps may end and start at the wait's start."""

    def __init__(self, loop: Loop, records: Callable[[], bool], made: IteratorMade) -> None:
        super().__init__(names.SPAN_DATA, loop)
        self._records, self._made = records, made
        self._iterator: Any = None
        self._resumed: Any = None
        self._ahead = 0
        """``id()`` of the iterator from which the program requests one batch ahead; 0: none."""

    def _settle(self, subject: Any) -> None:
        paused = LoopMoment.paused
        if isinstance(paused, PausedWait) and paused.goes_on(subject, _requester(3, subject)):
            LoopMoment.paused, self._resumed, self._ahead = None, paused, id(subject)
        else:
            super()._settle(subject)

    def _begins(self, subject: Any) -> None:
        self._iterator = subject
        if self._first_id == self._made.made_id + 1 and _is_generator_request(3, subject):
            self._began_ns = self._loop.step.now_ns = self._made.made_ns
        if self._loop.step.may_have_skipped and _is_passed_over(3, subject):
            self._loop.step.skip_batches()
        data = getattr(subject, "_dataset", None)
        self._loop.batch_requested(subject, data, records=self._records())
        resumed, self._resumed = self._resumed, None
        self._section = None if resumed is None else resumed.go_on()
        if self._section is None:
            self._open(self.name)

    @at_once
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self._left_ns = time.monotonic_ns()
            iterator, self._iterator = self._iterator, None
            if kind is StopIteration:
                safely(self._end_pass, iterator)
            elif kind is None:
                # The frame above is the woven function, whose code contains the `with`; the batch
                # is its local variable ``data``.
                batch = sys._getframe(1).f_locals.get("data")
                try:  # inlined `safely`: a call would cost
                    self._count(iterator, batch)
                except Exception as problem:  # noqa: BLE001 - recording never raises
                    internal_error(problem)
                # Must come after the count, which is part of the wait.
                if getattr(iterator, "_num_yielded", 0) == 1:
                    safely(self._pause, iterator, _requester(2, iterator))
        finally:
            if kind is StopIteration:
                kind = error = traceback = None
            LoopMoment.__exit__(self, kind, error, traceback)  # `super()` would be a call

    def _end_pass(self, iterator: Any) -> None:
        section, now, recorder = self._section, time.monotonic_ns(), active()
        is_recorded = recorder is not None and isinstance(section, recorder.sections.new)
        if recorder is not None and is_recorded:
            # The wait must be left before the enclosing step may be cancelled: otherwise leaving it
            # would make a cancelled step current again.
            recorder.sections.leave(section)
            self._section = None
        is_ahead = id(iterator) == self._ahead
        is_wait = self._loop.loader_ran_out(iterator, is_ahead=is_ahead) or is_ahead
        if recorder is not None and is_recorded:
            if is_wait:
                recorder.sections.close(section, now)
            else:  # there was no batch, so there was no wait for one
                recorder.stepping.cancel_section(section)

    def _pause(self, iterator: Any, place: _Place | None) -> None:
        self._ahead = 0
        recorder = active()
        if place is None or recorder is None:
            return
        section = self._section
        if isinstance(section, recorder.sections.new):  # an aggregate cannot be paused
            LoopMoment.paused = PausedWait(recorder.sections, section, id(iterator), place)
            self._section = None

    def _count(self, iterator: Any, batch: object) -> None:
        self._loop.batch_received(iterator, count_samples(batch, "auto"), batch)
        recorder = self._recorder
        if recorder is not None and not self._loop.validation.is_open:
            examine_padding(recorder.kept, recorder.cells, batch)


class PausedWait:
    """First wait for an iterator, paused because a generator may make another request."""

    def __init__(
        self, sections: RecordedSections, section: Any, iterator: int, place: _Place
    ) -> None:
        self._end_ns = time.monotonic_ns()
        self._sections, self._section = sections, section
        self._iterator, self._place = iterator, place
        sections.leave(section)

    def goes_on(self, iterator: object, place: _Place | None) -> bool:
        """Return whether the same generator now requests a batch from another position.

        ``place``: that position; None if no generator requests the batch.
        """
        is_same = place is not None and place[0] is self._place[0]
        return is_same and place != self._place and id(iterator) == self._iterator

    def go_on(self) -> Any:
        """Resume the wait: return its section, made current; None if the wait has ended."""
        if self._section is not None:
            self._sections.make_current(self._section)
        return self._section

    def settle(self) -> None:
        """End the wait at the time at which it was paused."""
        section, self._section = self._section, None
        if section is not None:
            self._sections.close(section, self._end_ns)


def _requester(depth: int, iterator: object) -> _Place | None:
    """Return the position of the generator that requests a batch; None if no generator does.

    For ``depth``, see ``_requester_frame``.
    """
    frame = _requester_frame(depth + 1, iterator)
    if frame is None or not frame.f_code.co_flags & CO_GENERATOR:
        return None
    return frame.f_code, frame.f_lasti


def _is_passed_over(depth: int, iterator: object) -> bool:
    """Return whether a ``for`` loop requests the batch, ``depth`` frames up.

    Such a loop may skip its batches. Code that collects batches, or requests one ahead, mostly
    calls ``next()``.
    """
    frame = _requester_frame(depth + 1, iterator)
    return frame is not None and frame.f_code.co_code[frame.f_lasti] == _FOR


def _is_generator_request(depth: int, iterator: object) -> bool:
    """Return whether a generator requests the batch by ``next()``, ``depth`` frames up.

    A generator with a ``for`` over the loader does not count: it may be the training loop itself.
    """
    frame = _requester_frame(depth + 1, iterator)
    if frame is None or not frame.f_code.co_flags & CO_GENERATOR:
        return False
    return frame.f_code.co_code[frame.f_lasti] != _FOR


def _requester_frame(depth: int, iterator: object) -> FrameType | None:
    """Return the frame that requests a batch, skipping ``__next__`` of derived iterators.

    The ``__next__`` of torch itself runs ``depth`` frames above this function.
    """
    frame = sys._getframe(depth).f_back
    while frame is not None and frame.f_code.co_name == "__next__":
        if frame.f_locals.get("self") is not iterator:
            break
        frame = frame.f_back
    return frame
