"""Loop moments: the sections and notifications at the start and end of each moment.

Each kind of moment is a gate that functions of torch are woven into: while a moment is open, so is
a section, and the loop is notified of both ends. Only the loop's thread is observed. The kinds are
defined in `training_moments.py`.

The duration of a moment is what its caller waits for, our own part included: it starts with the
first action here, and everything except writing its section is done before it ends.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from otel_mlperf.journal.layout import Word
from otel_mlperf.pytorch.loop_thread import LoopThread
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.name_registry import implied_category
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_mlperf.pytorch.loop.loop_finder import Loop
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_get_ident = get_ident
clock: Final = time.monotonic_ns
"""Clock for the times of moments."""
_WATCH_TIME: Final = int(Word.WATCH_TIME)
_OWN_IDS: Final = 2
"""Number of section ids that a moment uses: of a step or validation, and its own."""
UNSEEN = nullcontext()


class Paused(Protocol):
    """Protocol of a paused moment, which may continue if nothing else happens."""

    def settle(self) -> None:
        """Close it at the time of the pause, as something else happens."""


class LoopMoment:
    """One kind of moment; the outermost open moment is a section."""

    is_off: ClassVar[bool] = False
    """Whether observing is off: the end of a moment that was still open must not switch it on."""
    paused: ClassVar[Paused | None] = None
    switched_ns: ClassVar[int] = 0
    """Time of the last switch of a model to evaluation."""
    switched_id: ClassVar[int] = 0
    """The id drawn then: if the next one follows, nothing was recorded since."""
    depth: ClassVar[int] = 1
    """Increment of the loop's depth: 0 if steps may start and end inside."""

    def __init__(self, name: str, loop: Loop) -> None:
        self.name = name
        self.busy = False
        """Whether it is not observed: a moment that it is part of is open, or observing is off."""
        self._loop = loop
        self._parts: tuple[LoopMoment, ...] = ()
        self._shut: Sequence[LoopMoment] = ()
        self._subject: Any = None
        self._began_ns = self._first_id = self._left_ns = self._own_ns = 0
        self._recorder: Recorder | None = None
        self._section: Any = None

    def holds(self, parts: Iterable[LoopMoment]) -> None:
        """Set the moments that are part of it, and are not observed inside."""
        self._parts = tuple(parts)

    def of(self, subject: Any = None) -> Any:
        """Return the gate for a call of this module, optimizer or iterator."""
        # One gate serves all calls of a function: its open state belongs to one thread only.
        if _get_ident() != LoopThread.ident:
            return UNSEEN
        self._began_ns = clock()
        self._subject = subject
        return self

    def __enter__(self) -> None:
        subject, self._subject = self._subject, None
        loop, began_ns = self._loop, self._began_ns
        loop.step.now_ns = began_ns
        self._recorder = recorder = active()
        self._first_id = first_id = 0 if recorder is None else recorder.next_id()
        is_next = first_id == LoopMoment.switched_id + 1
        loop.switched_ns = LoopMoment.switched_ns if is_next else 0
        try:
            self.busy = True
            if self._parts:
                # Without an open moment none of its parts is open.
                inside = loop.depth
                self._shut = [one for one in self._parts if not one.busy] if inside else self._parts
                for part in self._shut:
                    part.busy = True
            try:
                if LoopMoment.paused is not None:
                    self._settle(subject)
                self._begins(subject)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)
            self._own_ns = clock() - began_ns
        except BaseException as error:  # Ctrl-C: a failed enter is not followed by an exit
            self._open_again()
            self._leave(error)
            raise
        loop.depth += self.depth

    @at_once
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self._left_ns = self._left_ns or clock()
            if self._shut:
                self._open_again()
            if kind is not None:
                self._loop.failed()
        finally:  # all of it, wherever Ctrl-C comes; written out: a call would double its cost
            section, self._section = self._section, None
            recorder, self._recorder, loop = self._recorder, None, self._loop
            self.busy = LoopMoment.is_off
            loop.depth -= self.depth
            try:
                if section is not None:
                    section.__exit__(kind, error, traceback)
            finally:
                if self._shut:
                    self._open_again()
            if loop.step.is_updating or loop.validation.is_open:
                loop.over(clock())
            if recorder is not None:
                self._count_own(recorder, is_section=section is not None)

    def _count_own(self, recorder: Recorder, *, is_section: bool) -> None:
        """Add the time that this took from the program; a section's own cost is counted anyway."""
        left_ns, self._left_ns = self._left_ns, 0
        try:
            own_ns = self._own_ns + clock() - left_ns
            own_ns -= recorder.meta.cost_ns if is_section else 0
            if left_ns and own_ns > 0 and not recorder.is_retired:
                recorder.journal.count(_WATCH_TIME, own_ns)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def _begins(self, subject: Any) -> None:
        """Notify the loop and open the section."""
        self._open(self.name)

    def _open(self, name: str) -> None:
        """Open the section, unless the program itself has one of that name around this."""
        recorder = self._recorder
        if recorder is None:
            return
        if recorder.choice.is_used and self._is_unrecorded(recorder, name):
            return
        entry = recorder.registry.known.get(name) or recorder.registry.entry(name, name)
        section = recorder.sections.make(entry)
        around = CURRENT.get()
        is_inside = around.__class__ is section.__class__
        if is_inside and around.entry == entry and around.at:
            return
        # Stored before it is entered: in case of an interrupt, it is left.
        self._section = section
        section.__enter__()
        # It starts with the moment, unless something else was recorded since.
        if is_inside and section.sid - self._first_id <= _OWN_IDS:
            t0 = self._began_ns
            recorder.sections.backdate(section, t0 if t0 >= around.t0 else around.t0)

    def _is_unrecorded(self, recorder: Recorder, name: str) -> bool:
        """Return whether the settings omit the section; start it here if it is only summed."""
        choice = recorder.choice.of(name, implied_category(name))
        if choice == "aggregate":
            self._section = recorder.aggregated.make(name, None)
            self._section.__enter__()
        return choice != "record"

    def _leave(self, error: BaseException) -> None:
        """Leave a section that was opened by a moment that does not start."""
        section, self._section = self._section, None
        if section is not None:
            section.__exit__(type(error), error, None)

    def _settle(self, subject: Any) -> None:
        """Close a paused moment, as this one starts."""
        paused, LoopMoment.paused = LoopMoment.paused, None
        if paused is not None:
            paused.settle()

    def _open_again(self) -> None:
        is_off = LoopMoment.is_off
        self.busy = is_off
        if self._shut:
            for part in self._shut:
                part.busy = is_off
            self._shut = ()


class OtherWork(LoopMoment):
    """A call that belongs to no step and no validation: a section in which neither starts.

    It is a checkpoint, or looks like a validation: the statistics of normalization layers are
    computed from training batches without gradients, and a policy plays in evaluation mode to
    collect what it learns from.
    """

    def _begins(self, subject: Any) -> None:
        self._loop.break_off()
        super()._begins(subject)


def safely(call: Callable[..., object], *arguments: object) -> None:
    """Call a function whose exceptions must not reach the program."""
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
