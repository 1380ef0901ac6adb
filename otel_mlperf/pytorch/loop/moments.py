"""What happens when a moment of a training loop begins and ends?

Each kind of moment is a gate that functions of torch are woven into: while one is open, a section
is, and the loop hears of both ends. Only the main thread is seen. Of a module in a module the
outermost counts, of what a backward pass or a loader calls the backward pass or the wait; an
optimizer's closure is looked into.

What a moment takes is what its caller waits for, our own part included: it begins with the first
thing that is done here, and all but writing its section down is done before it ends.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from otel_mlperf import names
from otel_mlperf.recorder.api.span import active, span
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_mlperf.pytorch.loop.loop_finder import Loop
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

# Asked for by number: `current_thread()` would register the threads of autograd with Python.
_MAIN_THREAD = threading.main_thread().ident
_get_ident = threading.get_ident
_clock = time.monotonic_ns
_OWN_IDS: Final = 2
"""Of sections that a moment opens: of a step or validation, and its own."""
UNSEEN = nullcontext()


class Paused(Protocol):
    """What may still go on, as long as nothing else happens."""

    def settle(self) -> None:
        """Something else happens: it ended when it was paused."""


class LoopMoment:
    """One kind of moment; the outermost one that is open is a section."""

    is_off: ClassVar[bool] = False
    """Whether nothing is seen: the end of a moment that was open meanwhile switches nothing on."""
    paused: ClassVar[Paused | None] = None

    def __init__(self, name: str, loop: Loop) -> None:
        self.name = name
        self.busy = False
        """Whether it passes unseen: one is open that it is part of, or seeing is switched off."""
        self._loop = loop
        self._parts: tuple[LoopMoment, ...] = ()
        self._shut: list[LoopMoment] = []
        self._subject: Any = None
        self._began_ns = self._first_id = 0
        self._recorder: Recorder | None = None
        self._section: Any = None

    def holds(self, parts: Iterable[LoopMoment]) -> None:
        """What is part of it, and passes unseen inside."""
        self._parts = tuple(parts)

    def of(self, subject: Any = None) -> Any:
        """The gate for a call of this module, optimizer or iterator."""
        # One gate serves all calls of a function: what is open in it is of one thread alone.
        if _get_ident() != _MAIN_THREAD:
            return UNSEEN
        self._began_ns = _clock()
        self._subject = subject
        return self

    def __enter__(self) -> None:
        subject, self._subject = self._subject, None
        self._loop.step.now_ns = self._began_ns
        self._recorder = recorder = active()
        self._first_id = 0 if recorder is None else recorder.next_id()
        self.busy = True
        if self._parts:
            self._shut = [part for part in self._parts if not part.busy]
            for part in self._shut:
                part.busy = True
        try:
            try:
                if LoopMoment.paused is not None:
                    self._settle(subject)
                self._section = self._begins(subject)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)
        except BaseException:  # Ctrl-C: whoever enters is not told to leave
            self._open_again()
            raise
        self._loop.depth += 1

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        section, self._section = self._section, None
        self._recorder, loop = None, self._loop
        loop.depth -= 1
        try:  # written out: a call costs as much as all it does
            self.busy = LoopMoment.is_off
            if self._shut:
                self._open_again()
            if kind is not None:
                loop.failed()
        finally:
            if section is not None:
                section.__exit__(kind, error, traceback)
            if loop.step.is_updating or loop.validation.is_open:
                loop.over(_clock())

    def _begins(self, subject: Any) -> Any:
        """Tells the loop and opens the section."""
        return self._open(self.name)

    def _open(self, name: str) -> Any:
        """The section, entered; None where the program has one of that name around this itself."""
        section: Any = span(name)
        around = CURRENT.get()
        if around.__class__ is not section.__class__:
            section.__enter__()
            return section
        if around.entry == section.entry and around.at:
            return None
        section.__enter__()
        # It began when the moment did, unless something else was recorded since.
        recorder, t0 = self._recorder, self._began_ns
        if recorder is not None and section.sid - self._first_id <= _OWN_IDS:
            recorder.sections.backdate(section, t0 if t0 >= around.t0 else around.t0)
        return section

    def _settle(self, subject: Any) -> None:
        """Something was paused, and this begins."""
        paused, LoopMoment.paused = LoopMoment.paused, None
        if paused is not None:
            paused.settle()

    def _open_again(self) -> None:
        is_off = LoopMoment.is_off
        self.busy = is_off
        if self._shut:
            for part in self._shut:
                part.busy = is_off
            self._shut = []


class Forward(LoopMoment):
    """The outermost call of a module; that of a loss is one of its own."""

    def __init__(self, loop: Loop, records: Callable[[], bool], losses: type) -> None:
        super().__init__(names.FORWARD, loop)
        self._records = records
        self._losses = losses
        self._known: dict[type, bool] = {}

    def _begins(self, subject: Any) -> Any:
        kind = type(subject)
        is_loss = self._known.get(kind)
        if is_loss is None:
            is_loss = self._known[kind] = self._is_loss(subject)
        if not is_loss:
            self._loop.forward_begins(subject, records=self._records())
        return self._open(names.SPAN_LOSS if is_loss else names.FORWARD)

    def _is_loss(self, module: Any) -> bool:
        """One of torch's own, or what is called one and has nothing to learn itself."""
        if isinstance(module, self._losses):
            return True
        is_called_so = type(module).__name__.endswith("Loss")
        return is_called_so and next(iter(module.parameters()), None) is None


class Backward(LoopMoment):
    """The backward pass."""

    def _begins(self, subject: Any) -> Any:
        self._loop.backward_begins()
        return super()._begins(subject)


class Update(LoopMoment):
    """The step of an optimizer, or of a scaler that may leave it out; seen inside one another."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(names.OPTIMIZER, loop)
        self._optimizers: list[Any] = []

    def __enter__(self) -> None:
        optimizer = self._subject
        if self._optimizers:
            self._subject = None
        else:
            super().__enter__()
            self.busy = LoopMoment.is_off
        self._optimizers.append(optimizer)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        optimizer = self._optimizers.pop()
        if kind is None and optimizer is not None:
            safely(self._loop.updated, optimizer)
        if not self._optimizers:
            super().__exit__(kind, error, traceback)

    def _begins(self, subject: Any) -> Any:
        self._loop.update_begins(subject)
        return super()._begins(subject)


class OptimizerMade(LoopMoment):
    """An optimizer is constructed: no section, the loop only hears of it."""

    def _begins(self, subject: Any) -> None:
        self._loop.optimizer_made(subject)


def safely(call: Callable[..., object], *arguments: object) -> None:
    """Calls what must not raise into the program."""
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
