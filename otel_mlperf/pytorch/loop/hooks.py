"""Which moments of a training loop does torch itself let us see?

The wait for a DataLoader's batch, the outermost call of a module, the backward pass, the step of an
optimizer and a checkpoint: each becomes a section, on the main thread, and the loop's steps and
validations follow from them. No value, random stream, exception or traceback changes; what a
version of torch does not let us see is left out and said once.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.pytorch.loop.batch_wait import BatchWait
from otel_mlperf.pytorch.loop.checkpoints import NO_FILE, Checkpoint, file_of, made_by
from otel_mlperf.pytorch.loop.loop_finder import Loop
from otel_mlperf.pytorch.loop.moments import (
    Backward,
    Forward,
    LoopMoment,
    OptimizerMade,
    Update,
    safely,
)
from otel_mlperf.pytorch.loop.recorded_steps import RecordedSteps
from otel_mlperf.pytorch.loop.weave import weave
from otel_mlperf.recorder.api import start
from otel_mlperf.recorder.api.span import watch_torch
from otel_mlperf.recorder.core.faults import say_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_mlperf.recorder.lifecycle.run import Run

_loop = Loop(RecordedSteps())
_moments: list[LoopMoment] = []
_save, _load = made_by(_loop)
_SHARDS: Final = "checkpoint_id if process_group is None else None"
_LIGHTNING: Final = {"_atomic_save": (_save, "filepath"), "_load": (_load, "path_or_url")}
CHECKPOINTS: Final[dict[str, dict[str, tuple[Checkpoint, str]]]] = {
    "torch.serialization": {"save": (_save, "f"), "load": (_load, "None if mmap else f")},
    "torch.distributed.checkpoint.state_dict_saver": {
        "save": (_save, _SHARDS), "async_save": (_save, NO_FILE),
    },
    "torch.distributed.checkpoint.state_dict_loader": {"load": (_load, NO_FILE)},
    "safetensors.torch": {
        "save_file": (_save, "filename"), "save_model": (_save, "filename"),
        "load_file": (_load, "filename"), "load_model": (_load, "filename"),
    },
    "lightning.fabric.utilities.cloud_io": _LIGHTNING,
    "lightning_fabric.utilities.cloud_io": _LIGHTNING,
}  # fmt: skip
"""Functions that write and read checkpoints, by their module, and the parameter that is the file;
many programs never import most of these."""


def install() -> None:
    """Sees the moments of torch from now on, which has been imported. Never raises."""
    is_woven, _loop.depth = bool(_moments), 0
    if not is_woven:  # what is woven stays so for good, and would be seen twice
        _moments.extend((_save, _load))
        _hook("the training loop", _install)
    _switch(is_off=False)


def _install() -> None:
    watch_torch()
    torch = importlib.import_module("torch")
    loader = importlib.import_module("torch.utils.data.dataloader")
    optimizer = importlib.import_module("torch.optim.optimizer").Optimizer
    losses = importlib.import_module("torch.nn.modules.loss")._Loss
    wait = BatchWait(_loop, torch.is_grad_enabled)
    forward = Forward(_loop, torch.is_grad_enabled, losses)
    backward, update = Backward(names.BACKWARD, _loop), Update(_loop)
    backward.holds([forward])
    wait.holds([forward, backward, update, _save, _load])
    _moments.extend((wait, forward, backward, update))
    _hook("data wait", lambda: _weave(loader._BaseDataLoaderIter.__next__, wait, subject="self"))
    _hook(
        "forward",
        lambda: _weave(torch.nn.Module._wrapped_call_impl, forward, subject="self"),
    )
    _hook("backward", lambda: _weave(torch.autograd.backward, backward))
    _hook("steps", lambda: _weave_optimizers(optimizer, update))
    _hook("scaled steps", lambda: _weave(torch.amp.GradScaler.step, update, subject="optimizer"))
    start.at_begin.append(_end_with)
    run = start.current()
    if run is not None:
        _end_with(run)
    # Workers of a loader call modules too; what they do is the wait of the process that asks.
    # Nothing takes this hook off again, one more reason to be here once in a process.
    os.register_at_fork(after_in_child=switch_off)


def _weave_optimizers(optimizer: Any, update: Update) -> None:
    first = "args[0] if args else None"
    # Those of classes that the program has made an optimizer of before.
    steps = (vars(kind).get("step") for kind in _kinds_of(optimizer))
    made_before = [step for step in steps if isinstance(step, FunctionType)]
    weave(
        optimizer.profile_hook_step, update, "_otel_mlperf_optimizer",
        inner="wrapper", made=made_before, subject=first,
    )  # fmt: skip
    made = OptimizerMade("made", _loop)
    _moments.append(made)
    _weave(optimizer.__init__, made, subject="self")


def _kinds_of(kind: Any) -> Iterator[Any]:
    for below in kind.__subclasses__():
        yield below
        yield from _kinds_of(below)


def see_checkpoints(module: str) -> None:
    """Sees those of a module of ``CHECKPOINTS`` too, which has been imported. Never raises."""
    for name, (moment, file) in CHECKPOINTS[module].items():
        function = getattr(sys.modules[module], name, None)
        if function is not None:
            # What is decorated is not woven, but what it decorates.
            own = inspect.unwrap(function)
            _hook(
                f"checkpoints of {module}",
                lambda: _weave(own, moment, subject=file_of(own, file)),  # noqa: B023 - called at once
            )


def switch_off() -> None:
    """Sees nothing from now on."""
    LoopMoment.paused = None
    _switch(is_off=True)


def give_way() -> None:
    """The program has started a run itself: it says what its steps and sections are."""
    switch_off()
    safely(_loop.give_up)


def hold_steps() -> None:
    """Infers no steps until as many calls of ``release_steps`` have followed."""
    safely(_loop.hold)


def release_steps() -> None:
    """Infers them again."""
    safely(_loop.release)


def _end_with(run: Run) -> None:
    # Before others do what they do at the end of a run: it may be that its last step ends.
    run.before_end.insert(0, _finish)


def _finish() -> None:
    paused, LoopMoment.paused = LoopMoment.paused, None
    if paused is not None:
        safely(paused.settle)
    safely(_loop.finish)


def _switch(*, is_off: bool) -> None:
    LoopMoment.is_off = is_off
    for moment in _moments:
        moment.busy = is_off


def _weave(function: Any, moment: LoopMoment, *, subject: str = "None") -> None:
    name = f"_otel_mlperf_{moment.name.replace('.', '_')}"
    weave(function, moment, name, subject=subject)


def _hook(what: str, put: Callable[[], object]) -> None:
    try:
        put()
    except Exception as error:  # noqa: BLE001 - a torch that is built otherwise trains all the same
        say_once("%s of this torch cannot be seen from outside: %s", what, error)
