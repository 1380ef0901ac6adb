"""Hooks into torch for the moments of a training loop.

Moments are the wait for a DataLoader's batch, the transfer of a batch by a framework, the outermost
call of a module, the backward pass, the step of an optimizer and a checkpoint. On the loop's
thread, each moment becomes a section, and steps and validations are inferred from the moments.
Values, random streams, exceptions and tracebacks do not change. Functions that a version of torch
does not have are skipped and logged once.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.pytorch.loop.backward_gate import BACKWARD_GATE
from otel_mlperf.pytorch.loop.batch_wait import BatchWait, IteratorMade
from otel_mlperf.pytorch.loop.moments import LoopMoment, OtherWork, count_own_time, safely
from otel_mlperf.pytorch.loop.non_training_moments import (
    COLLECTIVES,
    Capture,
    CapturedUpdates,
    Checkpoint,
    Collective,
    EpochBegins,
    Evaluation,
    EvaluationMode,
    Evaluator,
    Interrupted,
    OptimizerPrepared,
    OptimizerRestored,
    Replay,
    Transfer,
)
from otel_mlperf.pytorch.loop.recorded_steps import RecordedSteps
from otel_mlperf.pytorch.loop.step_inference import Loop
from otel_mlperf.pytorch.loop.training_moments import (
    Backward,
    Forward,
    OptimizerMade,
    TrainingStep,
    Update,
    WrappedBackward,
    WrappedUpdate,
)
from otel_mlperf.pytorch.loop.watched_calls import WATCHED_CALLS
from otel_mlperf.pytorch.loop.weave import see, weave
from otel_mlperf.recorder.api import start
from otel_mlperf.recorder.api.span import active, watch_torch
from otel_mlperf.recorder.core.forks import call_in_children

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.pytorch.loop.watched_calls import WatchedCall
    from otel_mlperf.recorder.lifecycle.run import Run

_loop = Loop(RecordedSteps())
_moments: list[LoopMoment] = []
_backward: Final = Backward(names.BACKWARD, _loop)
_update: Final = Update(_loop)
_save: Final = Checkpoint(names.SPAN_CHECKPOINT, names.CHECKPOINT_WRITE, _loop)
_load: Final = Checkpoint(names.SPAN_CHECKPOINT_LOAD, names.CHECKPOINT_READ, _loop)
_of_libraries: Final[dict[str, LoopMoment]] = {
    "save": _save,
    "load": _load,
    "save_all": _save.whole,
    "load_all": _load.whole,
    "transfer": Transfer(_loop),
    "training_step": TrainingStep(names.SPAN_TRAINING_STEP, _loop),
    "backward": WrappedBackward(_backward),
    "update": WrappedUpdate(_update),
    "validate": Evaluation("evaluation", _loop),
    "evaluator": Evaluator("evaluator", _loop),
    "update_bn": OtherWork("update_bn", _loop),
    "rollout": OtherWork("rollout", _loop),
    "epoch": EpochBegins("epoch", _loop),
    "prepare": OptimizerPrepared("prepare", _loop),
    "interrupt": Interrupted("interrupt", _loop),
} | {name: Collective(name, _loop) for name in COLLECTIVES}


def install() -> None:
    """Start observing the moments of a loop, once torch has been imported; never raises."""
    is_woven, _loop.depth = bool(_moments), 0
    if not is_woven:  # woven code is permanent: install it only once
        _moments.extend(_of_libraries.values())
        see("the training loop", _install)
    _switch(is_off=False)


def _install() -> None:
    watch_torch()
    torch = importlib.import_module("torch")
    loader = importlib.import_module("torch.utils.data.dataloader")
    optimizer = importlib.import_module("torch.optim.optimizer").Optimizer
    losses = importlib.import_module("torch.nn.modules.loss")._Loss
    made = IteratorMade("iterator", _loop)
    wait = BatchWait(_loop, torch.is_grad_enabled, made)
    forward = Forward(_loop, torch.is_grad_enabled, losses)
    backward, update = _backward, _update
    backward.holds([forward])
    _of_libraries["prepare"].holds([update])
    # Listed are only moments that may occur in a loader and do not themselves check for an open
    # moment.
    wait.holds([forward, backward, update, _of_libraries["save"], _of_libraries["load"]])
    _moments.extend((made, wait, forward, backward, update))
    see("iterators of loaders", lambda: _weave(loader.DataLoader.__iter__, made))
    see("data wait", lambda: _weave(loader._BaseDataLoaderIter.__next__, wait, subject="self"))
    see(
        "forward",
        lambda: _weave(torch.nn.Module._wrapped_call_impl, forward, subject="self"),
    )
    evaluation = EvaluationMode("eval", _loop)
    _moments.append(evaluation)
    see("evaluation mode", lambda: _weave(torch.nn.Module.eval, evaluation))
    BACKWARD_GATE.lead_to(backward)
    see("steps", lambda: _weave_optimizers(optimizer, update))
    scaled = torch.amp if hasattr(torch.amp, "GradScaler") else torch.cuda.amp  # before torch 2.3
    see("scaled steps", lambda: _weave(scaled.GradScaler.step, update, subject="optimizer"))
    see("CUDA graphs", lambda: weave_graphs(torch.cuda.graphs.CUDAGraph))
    start.at_begin.append(_end_with)
    run = start.current()
    if run is not None:
        _end_with(run)
    # Switched off in forked children: loader workers may call modules, but their work is part of
    # the parent's wait. Must be registered only once per process: there is no interface to remove
    # the callback.
    call_in_children(switch_off)


def _weave_optimizers(optimizer: Any, update: Update) -> None:
    first = "args[0] if args else None"
    # The ``step`` functions of optimizer classes that were instantiated, and so wrapped, earlier.
    steps = (vars(kind).get("step") for kind in _kinds_of(optimizer))
    made_before = [step for step in steps if isinstance(step, FunctionType)]
    weave(
        optimizer.profile_hook_step, update, "_otel_mlperf_optimizer",
        inner="wrapper", made=made_before, subject=first,
    )  # fmt: skip
    made = OptimizerMade("made", _loop)
    _moments.append(made)
    _weave(optimizer.__init__, made, subject="self")
    restored = OptimizerRestored("restored", _loop)
    _moments.append(restored)
    see(
        "resumed steps",
        lambda: _weave(inspect.unwrap(optimizer.load_state_dict), restored, subject="state_dict"),
    )


def weave_graphs(graph: Any) -> None:
    """Observe the captures and replays of ``graph``, a class of CUDA graphs."""
    captured = CapturedUpdates(_loop)
    for function, moment in (
        (graph.capture_begin, Capture(_loop, captured, is_begin=True)),
        (graph.capture_end, Capture(_loop, captured, is_begin=False)),
        (graph.replay, Replay(_loop, captured)),
    ):
        _moments.append(moment)
        _weave(function, moment, subject="self")


def _kinds_of(kind: Any) -> Iterator[Any]:
    for below in kind.__subclasses__():
        yield below
        yield from _kinds_of(below)


def see_library(module: str) -> None:
    """Observe the ``WATCHED_CALLS`` of an imported module; never raises."""
    for call in WATCHED_CALLS[module]:
        found: Any = sys.modules[module]
        for word in call.name.split("."):
            found = getattr(found, word, None)
        if found is not None:
            see(f"{call.name} of {module}", partial(_weave_call, call, found))


def _weave_call(call: WatchedCall, found: Any) -> None:
    # Of a decorated function, the function below the decorators is woven.
    function = inspect.unwrap(getattr(found, "__func__", found))
    _weave(function, _of_libraries[call.does], subject=call.subject_in(function))


def switch_off() -> None:
    """Stop observing the moments of a loop."""
    LoopMoment.paused = None
    _switch(is_off=True)


def give_way() -> None:
    """Stop observing, and end inference, because the program has started a run itself."""
    switch_off()
    safely(_loop.give_up)


def hold_steps() -> None:
    """Suspend step inference, until ``release_steps`` was called as often as this function."""
    safely(_loop.hold)


def release_steps() -> None:
    """End one suspension by ``hold_steps``; inference resumes when none is left."""
    safely(_loop.release)


def _end_with(run: Run) -> None:
    # Must come before other actions at the end of a run: its last step may end here.
    run.before_end.insert(0, _finish)


def _finish() -> None:
    paused, LoopMoment.paused = LoopMoment.paused, None
    if paused is not None:
        safely(paused.settle)
    safely(_loop.finish)
    recorder = active()
    if recorder is not None:
        _update.others.record(recorder)
        safely(count_own_time, _loop, recorder)


def _switch(*, is_off: bool) -> None:
    LoopMoment.is_off = is_off
    for moment in _moments:
        moment.busy = is_off


def _weave(function: Any, moment: LoopMoment, *, subject: str = "None") -> None:
    name = f"_otel_mlperf_{moment.name.replace('.', '_')}"
    weave(function, moment, name, subject=subject)
