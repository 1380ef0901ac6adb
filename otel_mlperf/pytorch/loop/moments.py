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
from otel_mlperf.journal.layout import Word
from otel_mlperf.pytorch.loop.few_updates import FewUpdates
from otel_mlperf.pytorch.loop.gradient_exchange import ASKED, WRAPPER, read_exchange
from otel_mlperf.pytorch.loop.graph_size import count_operations
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.name_registry import implied_category
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_mlperf.pytorch.loop.loop_finder import Loop
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

# Asked for by number: `current_thread()` would register the threads of autograd with Python.
_MAIN_THREAD = threading.main_thread().ident
_get_ident = threading.get_ident
_clock = time.monotonic_ns
_WATCH_TIME: Final = int(Word.WATCH_TIME)
_OWN_IDS: Final = 2
"""Of sections that a moment opens: of a step or validation, and its own."""
_COUNTED: Final = (2, 20, 200)
"""Backward passes whose operations are counted: the first one may be another."""
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
    switched_ns: ClassVar[int] = 0
    """When a model was switched to evaluation last."""
    switched_id: ClassVar[int] = 0
    """The id that was drawn then: the next one says that nothing was recorded since."""
    depth: ClassVar[int] = 1
    """What it adds to the loop's: nothing, if steps may begin and end inside."""

    def __init__(self, name: str, loop: Loop) -> None:
        self.name = name
        self.busy = False
        """Whether it passes unseen: one is open that it is part of, or seeing is switched off."""
        self._loop = loop
        self._parts: tuple[LoopMoment, ...] = ()
        self._shut: Sequence[LoopMoment] = ()
        self._subject: Any = None
        self._began_ns = self._first_id = self._left_ns = self._own_ns = 0
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
        loop, began_ns = self._loop, self._began_ns
        loop.step.now_ns = began_ns
        self._recorder = recorder = active()
        self._first_id = first_id = 0 if recorder is None else recorder.next_id()
        is_next = first_id == LoopMoment.switched_id + 1
        loop.switched_ns = LoopMoment.switched_ns if is_next else 0
        try:
            self.busy = True
            if self._parts:
                # With no moment open none of its parts is.
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
            self._own_ns = _clock() - began_ns
        except BaseException as error:  # Ctrl-C: whoever enters is not told to leave
            self._open_again()
            self._leave(error)
            raise
        loop.depth += self.depth

    @at_once
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self._left_ns = self._left_ns or _clock()
            if self._shut:
                self._open_again()
            if kind is not None:
                self._loop.failed()
        finally:  # all of it, wherever Ctrl-C comes; written out: a call costs as much as it does
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
                loop.over(_clock())
            if recorder is not None:
                self._count_own(recorder, is_section=section is not None)

    def _count_own(self, recorder: Recorder, *, is_section: bool) -> None:
        """Adds what this took of the program's time; that of a section is counted anyway."""
        left_ns, self._left_ns = self._left_ns, 0
        try:
            own_ns = self._own_ns + _clock() - left_ns
            own_ns -= recorder.meta.cost_ns if is_section else 0
            if left_ns and own_ns > 0 and not recorder.is_retired:
                recorder.journal.count(_WATCH_TIME, own_ns)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def _begins(self, subject: Any) -> None:
        """Tells the loop and opens the section."""
        self._open(self.name)

    def _open(self, name: str) -> None:
        """Opens the section, unless the program has one of that name around this itself."""
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
        # Known before it is entered: whatever comes in between, it is left.
        self._section = section
        section.__enter__()
        # It began when the moment did, unless something else was recorded since.
        if is_inside and section.sid - self._first_id <= _OWN_IDS:
            t0 = self._began_ns
            recorder.sections.backdate(section, t0 if t0 >= around.t0 else around.t0)

    def _is_unrecorded(self, recorder: Recorder, name: str) -> bool:
        """Whether the settings leave such a section out, or only add it up, which is begun here."""
        choice = recorder.choice.of(name, implied_category(name))
        if choice == "sum_up":
            self._section = recorder.aggregated.make(name, None)
            self._section.__enter__()
        return choice != "record"

    def _leave(self, error: BaseException) -> None:
        """Leaves a section that was opened by a moment that does not begin."""
        section, self._section = self._section, None
        if section is not None:
            section.__exit__(type(error), error, None)

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
            self._shut = ()


class Forward(LoopMoment):
    """The outermost call of a module; that of a loss is one of its own."""

    def __init__(self, loop: Loop, records: Callable[[], bool], losses: type) -> None:
        super().__init__(names.FORWARD, loop)
        self._records = records
        self._losses = losses
        self._known: dict[type, bool] = {}
        self._exchanges: tuple[Recorder | None, int] = None, 0
        """Calls of modules whose gradients DDP exchanges, and in which run."""

    def _begins(self, subject: Any) -> None:
        kind = type(subject)
        is_loss = self._known.get(kind)
        if is_loss is None:
            is_loss = self._known[kind] = self._is_loss(subject)
        if not is_loss:
            self._loop.forward_begins(subject, records=self._records())
            if kind.__name__ == WRAPPER:
                self._ask_exchange(subject)
        self._open(names.SPAN_LOSS if is_loss else names.FORWARD)

    def _ask_exchange(self, wrapper: Any) -> None:
        recorder, calls = self._exchanges
        calls = calls + 1 if recorder is self._recorder else 1
        self._exchanges = self._recorder, calls
        if calls in ASKED and self._recorder is not None:
            for metric, value in read_exchange(wrapper):
                self._recorder.cells.set(metric.name, metric.unit, value)

    def _is_loss(self, module: Any) -> bool:
        """One of torch's own, or what is called one and has nothing to learn itself."""
        if isinstance(module, self._losses):
            return True
        is_called_so = type(module).__name__.endswith("Loss")
        return is_called_so and next(iter(module.parameters()), None) is None


class Backward(LoopMoment):
    """The backward pass; of a few it is counted how many operations they go through."""

    _passes = 0

    def _begins(self, subject: Any) -> None:
        self._loop.backward_begins()
        self._passes += 1
        if self._passes in _COUNTED and self._recorder is not None:
            metric, count = names.GRAPH_NODES, count_operations(subject)
            self._recorder.cells.set(metric.name, metric.unit, count)
        super()._begins(subject)


class Update(LoopMoment):
    """The step of an optimizer, or of a scaler that may leave it out; seen inside one another."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(names.OPTIMIZER, loop)
        self._optimizers: list[Any] = []
        self._few = FewUpdates()

    def __enter__(self) -> None:
        optimizer, depth = self._subject, self._loop.depth
        if self._optimizers:
            self._subject, self._optimizers = None, [*self._optimizers, optimizer]
            return
        try:
            super().__enter__()
            self.busy = LoopMoment.is_off
            self._optimizers = [optimizer]
        except BaseException as error:  # Ctrl-C: whoever enters is not told to leave
            self._loop.depth = depth
            self._open_again()
            self._leave(error)
            raise

    @at_once
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self._left_ns = _clock()
            optimizer = self._optimizers[-1]
            if kind is None and optimizer is not None:
                safely(self._loop.updated, optimizer)
        finally:
            self._optimizers = self._optimizers[:-1]
            if not self._optimizers:
                LoopMoment.__exit__(self, kind, error, traceback)  # `super()` is a call

    def _begins(self, subject: Any) -> None:
        self._loop.update_begins(subject)
        self._few.begins(self._recorder, subject)
        super()._begins(subject)


class WrappedUpdate(LoopMoment):
    """The step of what a framework puts around an optimizer: an update, if it steps that now."""

    def __init__(self, update: Update) -> None:
        super().__init__("wrapped", update._loop)
        self._update = update

    def of(self, subject: Any = None) -> Any:
        """The gate for a call of this wrapper."""
        # accelerate's is called for each batch, and passes on what ends an accumulation.
        steps_now = getattr(getattr(subject, "gradient_state", None), "sync_gradients", True)
        optimizer = getattr(subject, "optimizer", None)
        if self._update.busy or optimizer is None or not steps_now:
            return UNSEEN
        return self._update.of(optimizer)


class WrappedBackward(LoopMoment):
    """A call of accelerate around the backward pass, if there is nothing else in it."""

    def __init__(self, backward: Backward) -> None:
        super().__init__("wrapped_backward", backward._loop)
        self._backward = backward

    def of(self, subject: Any = None) -> Any:
        """The gate for a call with this accelerator and loss."""
        accelerator, loss = subject or (None, None)
        backend = getattr(accelerator, "distributed_type", None)
        # DeepSpeed's updates, too; that of Megatron does nothing.
        if self._backward.busy or backend in (None, "DEEPSPEED", "MEGATRON_LM"):
            return UNSEEN
        return self._backward.of(loss)


class TrainingStep(LoopMoment):
    """What the program wrote of a step that Lightning makes: its own time is the program's own.

    It runs in the closure of an update, whose time it would be else.
    """

    depth = 0

    def of(self, subject: Any = None) -> Any:
        """The gate for a call by this strategy."""
        module = getattr(subject, "lightning_module", None)
        # By hand it updates inside, and may begin a step there.
        is_automatic = getattr(module, "automatic_optimization", False)
        return super().of() if is_automatic and self._loop.step.is_open else UNSEEN


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
