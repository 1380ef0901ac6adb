"""Loop moments: gates that open a section for calls of torch and notify the loop of them.

Functions of torch are woven into the gate of their kind of moment. While a moment is open, its
section is open too, and the loop is notified of start and end. Only the loop's thread is observed.
The kinds of moments are defined in `training_moments.py` and `non_training_moments.py`.

The duration of a moment is the time that its caller waits, including our own overhead. The duration
starts with the first action here, and everything except writing the section is done before the
duration ends.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from otel_mlperf.journal.layout import Word
from otel_mlperf.pytorch.loop_thread import LoopThread
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core import recording
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.name_registry import implied_category
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_mlperf.pytorch.loop.step_inference import Loop
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_get_ident = get_ident
clock: Final = time.monotonic_ns
"""Clock for the times of moments, in monotonic nanoseconds."""
_WATCH_TIME: Final = int(Word.WATCH_TIME)
_REPORT_OWN_NS: Final = 1_000_000
_OWN_IDS: Final = 2
"""Maximum number of section ids that a moment draws: of a step or validation, and its own."""
UNSEEN = nullcontext()


class Paused(Protocol):
    """Protocol of a paused moment, which is resumed if no other moment starts before."""

    def settle(self) -> None:
        """End the paused moment, with the time of the pause as its end: another moment starts."""


class LoopMoment:
    """One kind of moment; the outermost open moment is recorded as a section."""

    is_off: ClassVar[bool] = False
    """Whether observation is off; the end of an open moment must not switch it on again."""
    paused: ClassVar[Paused | None] = None
    switched_ns: ClassVar[int] = 0
    """Time of the last switch of a model to evaluation mode."""
    switched_id: ClassVar[int] = 0
    """Section id drawn at that switch; if the next id follows it, nothing was recorded since."""
    depth: ClassVar[int] = 1
    """Increment of the loop's depth: 0 if steps may start and end inside."""
    latest: ClassVar[Recorder | None] = None
    """The active recorder, or None; in a forked child, that of the parent process."""

    def __init__(self, name: str, loop: Loop) -> None:
        self.name = name
        self.busy = False
        """Whether calls are not observed: an enclosing moment is open, or observation is off."""
        self._loop = loop
        self._parts: tuple[LoopMoment, ...] = ()
        self._shut: Sequence[LoopMoment] = ()
        self._subject: Any = None
        self._began_ns = self._first_id = self._left_ns = self._own_ns = 0
        self._recorder: Recorder | None = None
        self._section: Any = None

    def holds(self, parts: Iterable[LoopMoment]) -> None:
        """Set the moments that are part of this moment, and not observed while it is open."""
        self._parts = tuple(parts)

    def of(self, subject: Any = None) -> Any:
        """Return the context for a call with ``subject``, a module, optimizer or iterator."""
        # Must be restricted to one thread: all calls of a function share the gate and its state.
        if _get_ident() != LoopThread.ident:
            return UNSEEN
        self._began_ns = clock()
        self._subject = subject
        return self

    def __enter__(self) -> None:
        subject, self._subject = self._subject, None
        loop, began_ns = self._loop, self._began_ns
        loop.step.now_ns = began_ns
        recorder = self.latest
        if recorder is not None and recorder.is_retired:
            recorder = active()
        self._recorder = recorder
        self._first_id = first_id = 0 if recorder is None else recorder.next_id()
        is_next = first_id == LoopMoment.switched_id + 1
        loop.switched_ns = LoopMoment.switched_ns if is_next else 0
        try:
            self.busy = True
            if self._parts:
                # Without an open moment, no part is busy: no filter is needed.
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
        except BaseException as error:  # ``__exit__`` is not called after a failed ``__enter__``
            self._open_again()
            self._leave(error)
            raise
        loop.depth += self.depth

    @at_once
    def __exit__(  # noqa: C901, PLR0912 - each call would cost
        self, kind: Any, error: Any, traceback: Any
    ) -> None:
        try:
            self._left_ns = self._left_ns or clock()
            if self._shut:
                self._open_again()
            if kind is not None:
                self._loop.failed()
        finally:  # completed even after Ctrl-C; inlined: a call would double its cost
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
            left_ns, self._left_ns = self._left_ns, 0
            if recorder is not None and left_ns:
                own_ns = self._own_ns + clock() - left_ns
                if section is not None:
                    own_ns -= recorder.meta.cost_ns
                if own_ns > 0:
                    loop.own_ns += own_ns
                    if loop.own_ns > _REPORT_OWN_NS:
                        safely(count_own_time, loop, recorder)

    def _begins(self, subject: Any) -> None:
        self._open(self.name)

    def _open(self, name: str) -> None:
        """Open the section, unless the program's enclosing section has the same name."""
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
        # Stored before it is entered, so that it is left after an interrupt.
        self._section = section
        section.__enter__()
        # The section starts with the moment, unless something else was recorded since then.
        if is_inside and section.sid - self._first_id <= _OWN_IDS:
            t0 = self._began_ns
            recorder.sections.backdate(section, t0 if t0 >= around.t0 else around.t0)

    def _is_unrecorded(self, recorder: Recorder, name: str) -> bool:
        """Return whether the settings exclude or aggregate a section; start it if aggregated."""
        choice = recorder.choice.of(name, implied_category(name))
        if choice == "aggregate":
            self._section = recorder.aggregated.make(name, None)
            self._section.__enter__()
        return choice != "record"

    def _leave(self, error: BaseException) -> None:
        section, self._section = self._section, None
        if section is not None:
            section.__exit__(type(error), error, None)

    def _settle(self, subject: Any) -> None:
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
    """A call that belongs to no step and no validation; inside it, neither starts.

    Examples are a checkpoint, and two calls that look like a validation: the computation of batch
    norm statistics from training batches without gradients, and a rollout, in which a policy in
    evaluation mode collects training data.
    """

    def _begins(self, subject: Any) -> None:
        self._loop.break_off()
        super()._begins(subject)


def count_own_time(loop: Loop, recorder: Recorder) -> None:
    """Count the time that moments have cost since the last count as overhead of the recorder."""
    own_ns, loop.own_ns = loop.own_ns, 0
    if not recorder.is_retired:
        recorder.journal.count(_WATCH_TIME, own_ns)


def _follow(recorder: Recorder | None) -> None:
    LoopMoment.latest = recorder


recording.watchers.append(_follow)
_follow(recording.unreplaced())


def safely(call: Callable[..., object], *arguments: object) -> None:
    """Call a function and report its exceptions; only exceptions of signal handlers propagate."""
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
