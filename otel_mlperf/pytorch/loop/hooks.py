"""Which moments of a training loop does torch itself let us see?

The wait for a DataLoader's batch, the outermost call of a module, the backward pass and the step of
an optimizer: each becomes a section, on the main thread, and the loop's steps follow from them. No
value, random stream, exception or traceback changes; what a version of torch does not let us see is
left out and said once.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar

from otel_mlperf import names
from otel_mlperf.pytorch.loop.loop_finder import Loop
from otel_mlperf.pytorch.loop.weave import weave
from otel_mlperf.recorder.api.span import active, span, watch_torch
from otel_mlperf.recorder.core.faults import internal_error, say_once
from otel_mlperf.recorder.stepping.batch_size import count_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep

# Asked for by number: `current_thread()` would register the threads of autograd with Python.
_MAIN_THREAD = threading.main_thread().ident


class LoopMoment:
    """One kind of moment; the outermost one that is open, on the main thread, is a section."""

    busy: ClassVar[bool] = False
    """Whether moments pass unseen: one is open, or seeing has been switched off."""
    is_off: ClassVar[bool] = False
    """The latter: the end of one that was open meanwhile switches nothing on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._section: Any = None

    def __enter__(self) -> None:
        if LoopMoment.busy or threading.get_ident() != _MAIN_THREAD:
            return
        # One gate serves all calls of a function: what is open in it is of one thread alone.
        LoopMoment.busy = True
        self._section = span(self.name)
        self._section.__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if self._section is None or threading.get_ident() != _MAIN_THREAD:
            return
        section, self._section = self._section, None
        try:
            section.__exit__(kind, error, traceback)
        finally:
            LoopMoment.busy = LoopMoment.is_off


class BatchWait(LoopMoment):
    """The wait for a loader's next batch, which is also where steps end and begin."""

    def __init__(self, loop: Loop, steps: RecordedSteps, learns: Callable[[], bool]) -> None:
        super().__init__(names.SPAN_DATA)
        self._loop = loop
        self._steps = steps
        self._learns = learns

    def __enter__(self) -> None:
        if threading.get_ident() == _MAIN_THREAD:
            # Before the wait's own section opens: the wait is part of the step that begins.
            _safely(self._loop.batch_asked, self._learns())
        super().__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        section = self._section
        if section is None or threading.get_ident() != _MAIN_THREAD:
            return
        if kind is StopIteration:
            # There was no batch, so there was no wait for one.
            self._section = None
            LoopMoment.busy = LoopMoment.is_off
            _safely(self._steps.take_back, section)
            _safely(self._loop.loader_ran_out)
            return
        super().__exit__(kind, error, traceback)
        if kind is None:
            # The batch is a local variable of the woven function, which is the frame above: its
            # own code holds the `with`. Its shape says how many.
            _safely(self._steps.add_batch, sys._getframe(1).f_locals.get("data"))


class Update(LoopMoment):
    """The step of an optimizer."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(names.OPTIMIZER)
        self._loop = loop

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        is_open = self._section is not None
        super().__exit__(kind, error, traceback)
        if is_open and kind is None and self._section is None:
            # The optimizer is a local variable of the woven function.
            _safely(self._loop.updated, id(sys._getframe(1).f_locals.get("self")))


class RecordedSteps:
    """The steps of a loop as steps of the active run."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._step: OpenStep | None = None

    def begin(self) -> None:
        """Opens a step."""
        self._recorder, self._step = active(), None
        if self._recorder is not None:
            self._step = self._recorder.stepping.begin()
        if self._step is not None:
            # Nobody has said that it is one: what ends around it takes it back.
            self._step.is_marked = True

    def add_batch(self, batch: object) -> None:
        """Counts the samples of a batch for the open step."""
        if self._step is not None and self._step.section.at:
            samples = count_samples(batch, "auto")
            if samples is not None:
                self._step.samples = (self._step.samples or 0) + samples

    def take_back(self, section: Any) -> None:
        """Forgets an open section."""
        recorder = active()
        if recorder is not None and isinstance(section, recorder.sections.new):
            recorder.sections.leave(section)
            recorder.stepping.cancel_section(section)

    def end(self) -> None:
        """Ends the open step."""
        if self._recorder is not None and self._step is not None:
            self._recorder.stepping.end(self._step)

    def cancel(self) -> None:
        """Forgets the open step."""
        if self._recorder is not None and self._step is not None:
            self._recorder.stepping.cancel(self._step)


_steps = RecordedSteps()
_loop = Loop(_steps)


_is_woven = False


def install() -> None:
    """Sees the moments of torch from now on, which has been imported. Never raises."""
    global _is_woven
    LoopMoment.busy = LoopMoment.is_off = False
    if not _is_woven:  # what is woven stays so for good, and would be seen twice
        _is_woven = True
        _hook("the training loop", _install)


def _install() -> None:
    watch_torch()
    torch = importlib.import_module("torch")
    loader = importlib.import_module("torch.utils.data.dataloader")
    optimizer = importlib.import_module("torch.optim.optimizer").Optimizer
    wait = BatchWait(_loop, _steps, torch.is_grad_enabled)
    _hook("data wait", lambda: _weave(loader._BaseDataLoaderIter.__next__, wait))
    _hook("forward", lambda: _weave(torch.nn.Module._wrapped_call_impl, LoopMoment(names.FORWARD)))
    _hook("backward", lambda: _weave(torch.autograd.backward, LoopMoment(names.BACKWARD)))
    _hook("steps", lambda: _weave(optimizer.profile_hook_step, Update(_loop), "wrapper"))
    # Workers of a loader call modules too; what they do is the wait of the process that asks.
    # Nothing takes this hook off again, one more reason to be here once in a process.
    os.register_at_fork(after_in_child=switch_off)


def switch_off() -> None:
    """Sees nothing from now on."""
    LoopMoment.busy = LoopMoment.is_off = True


def give_way() -> None:
    """The program has started a run itself: it says what its steps and sections are."""
    switch_off()
    _safely(_loop.give_up)


def hold_steps() -> None:
    """Infers no steps until as many calls of ``release_steps`` have followed."""
    _safely(_loop.hold)


def release_steps() -> None:
    """Infers them again."""
    _safely(_loop.release)


def _weave(function: Any, moment: LoopMoment, inner: str = "") -> None:
    weave(function, moment, f"_otel_mlperf_{moment.name.replace('.', '_')}", inner)


def _safely(call: Callable[..., None], *arguments: object) -> None:
    try:
        call(*arguments)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)


def _hook(what: str, put: Callable[[], object]) -> None:
    try:
        put()
    except Exception as error:  # noqa: BLE001 - a torch that is built otherwise trains all the same
        say_once("%s of this torch cannot be seen from outside: %s", what, error)
