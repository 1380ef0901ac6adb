"""Wait of a training loop for its batches.

Each request to a DataLoader's iterator is a wait. A generator may make a second request before it
hands out the first batch, to know whether that batch is the last: both requests are one wait. The
request that finds the end is a wait too, as long as a batch is left to train on. A loop that waits
for a generator also waits while the generator makes the iterator: its first wait starts there.
Batches that a loop passes over before its first step belong to no step.
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
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.instruments.batch_padding import look_for_padding
from otel_mlperf.recorder.stepping.batch_size import count_samples

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from otel_mlperf.pytorch.loop.loop_finder import Loop
    from otel_mlperf.recorder.sections.section_cases import RecordedSections

_FOR: Final = opcode.opmap["FOR_ITER"]
_Place = tuple[object, int]
"""Position of a generator: its code, and the instruction."""


class IteratorMade(LoopMoment):
    """Gate for the making of a loader's iterator: no section, and nothing is inside it."""

    made_ns = made_id = 0
    """Time of the last call, and the id drawn then: the next one follows it immediately."""

    def of(self, subject: Any = None) -> Any:
        """Note the time of the call."""
        if LoopThread.is_here():
            safely(self._note, time.monotonic_ns())
        return UNSEEN

    def _note(self, now_ns: int) -> None:
        recorder = active()
        if recorder is None:
            return
        self.made_ns, self.made_id = now_ns, recorder.next_id()
        if self.made_id == LoopMoment.switched_id + 1:  # a validation's: it started with the switch
            LoopMoment.switched_id = self.made_id


class BatchWait(LoopMoment):
    """Moment of the wait for a loader's next batch, which is also where steps end and start."""

    def __init__(self, loop: Loop, records: Callable[[], bool], made: IteratorMade) -> None:
        super().__init__(names.SPAN_DATA, loop)
        self._records, self._made = records, made
        self._iterator: Any = None
        self._resumed: Any = None
        self._ahead = 0
        """The iterator, by number, that is asked one batch ahead."""

    def _settle(self, subject: Any) -> None:
        paused = LoopMoment.paused
        if isinstance(paused, PausedWait) and paused.goes_on(subject, _asking(3, subject)):
            LoopMoment.paused, self._resumed, self._ahead = None, paused, id(subject)
        else:
            super()._settle(subject)

    def _begins(self, subject: Any) -> None:
        self._iterator = subject
        if self._first_id == self._made.made_id + 1 and _is_generator_s(3, subject):
            self._began_ns = self._loop.step.now_ns = self._made.made_ns
        if self._loop.step.may_have_skipped and _is_passed_over(3, subject):
            self._loop.step.skip_batches()
        data = getattr(subject, "_dataset", None)
        self._loop.batch_asked(subject, data, records=self._records())
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
                # The batch is a local variable of the woven function, which is the frame above:
                # its own code contains the `with`.
                batch = sys._getframe(1).f_locals.get("data")
                safely(self._count, iterator, batch)
                # After the count, which the wait includes.
                if getattr(iterator, "_num_yielded", 0) == 1:
                    safely(self._pause, iterator, _asking(2, iterator))
        finally:
            if kind is StopIteration:
                kind = error = traceback = None
            LoopMoment.__exit__(self, kind, error, traceback)  # `super()` would be a call

    def _end_pass(self, iterator: Any) -> None:
        section, now, recorder = self._section, time.monotonic_ns(), active()
        is_recorded = recorder is not None and isinstance(section, recorder.sections.new)
        if recorder is not None and is_recorded:
            # Must come first: the step around it may be cancelled, and must not be current
            # afterwards.
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
        if isinstance(section, recorder.sections.new):  # otherwise it is only summed
            LoopMoment.paused = PausedWait(recorder.sections, section, id(iterator), place)
            self._section = None

    def _count(self, iterator: Any, batch: object) -> None:
        self._loop.batch_given(iterator, count_samples(batch, "auto"), batch)
        recorder = active()
        if recorder is not None and not self._loop.validation.is_open:
            look_for_padding(recorder.kept, recorder.cells, batch)


class PausedWait:
    """The paused first wait for an iterator, by a generator that may make another request."""

    def __init__(
        self, sections: RecordedSections, section: Any, iterator: int, place: _Place
    ) -> None:
        self._end_ns = time.monotonic_ns()
        self._sections, self._section = sections, section
        self._iterator, self._place = iterator, place
        sections.leave(section)

    def goes_on(self, iterator: object, place: _Place | None) -> bool:
        """Return whether the same generator makes another request, from another place."""
        is_same = place is not None and place[0] is self._place[0]
        return is_same and place != self._place and id(iterator) == self._iterator

    def go_on(self) -> Any:
        """Return the section, current again; None: it has ended, and this is another wait."""
        if self._section is not None:
            self._sections.make_current(self._section)
        return self._section

    def settle(self) -> None:
        """Close the wait at the time at which it was paused."""
        section, self._section = self._section, None
        if section is not None:
            self._sections.close(section, self._end_ns)


def _asking(depth: int, iterator: object) -> _Place | None:
    """Return the place of the generator that calls the loader's function; None without one."""
    frame = _asker(depth + 1, iterator)
    if frame is None or not frame.f_code.co_flags & CO_GENERATOR:
        return None
    return frame.f_code, frame.f_lasti


def _is_passed_over(depth: int, iterator: object) -> bool:
    """Return whether a ``for`` loop calls the loader's function, ``depth`` frames up.

    Code that gathers batches, or asks ahead, mostly calls ``next()``.
    """
    frame = _asker(depth + 1, iterator)
    return frame is not None and frame.f_code.co_code[frame.f_lasti] == _FOR


def _is_generator_s(depth: int, iterator: object) -> bool:
    """Return whether a generator calls the loader by ``next()``, ``depth`` frames up.

    A generator with a ``for`` over the loader may also be the loop itself, which trains in there.
    """
    frame = _asker(depth + 1, iterator)
    if frame is None or not frame.f_code.co_flags & CO_GENERATOR:
        return False
    return frame.f_code.co_code[frame.f_lasti] != _FOR


def _asker(depth: int, iterator: object) -> FrameType | None:
    """Return the loader function's calling frame, skipping methods of kinds derived from it."""
    frame = sys._getframe(depth).f_back
    while frame is not None and frame.f_code.co_name == "__next__":
        if frame.f_locals.get("self") is not iterator:
            break
        frame = frame.f_back
    return frame
