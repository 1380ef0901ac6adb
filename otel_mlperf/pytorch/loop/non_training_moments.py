"""Gates of the moments of a loop other than training itself.

- epochs: no section; the loop receives the epoch numbers of a framework;
- interrupts: a Ctrl-C that a framework catches is noted as the run's failure;
- collectives that the program itself calls; those of DDP and FSDP are part of the calling moment;
- evaluation: a validation starts when a model was switched to evaluation mode, or when a
  framework's evaluation call started, if nothing was recorded since then;
- resumption: the state of Adam-like optimizers contains their number of updates, one per step;
- transfers: the one call by which a framework moves a whole batch; nothing waits for the device;
- CUDA graphs: each replay of a graph that was captured around a whole step is an update;
- checkpoints: a framework's call that writes or reads several files is one checkpoint; tensors
  pickled into a buffer are no checkpoints.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.pytorch.loop.checkpoint_io import CheckpointIo, set_size
from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment, OtherWork, clock, safely
from otel_mlperf.pytorch.loop_thread import LoopThread
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.api.start import current

if TYPE_CHECKING:
    from otel_mlperf.pytorch.loop.step_inference import Loop

_ROUNDING: Final = 1e-6
"""Tolerance: transformers computes its epoch as a sum of fractions, one per step."""


class EpochBegins(LoopMoment):
    """Gate of the call with which Lightning's fit loop or transformers' Trainer starts an epoch."""

    def of(self, subject: Any = None) -> Any:
        """Report the framework's epoch number to the loop; ``subject`` contains it."""
        if LoopThread.is_here():
            safely(self._report, subject)
        return UNSEEN

    def _report(self, subject: Any) -> None:
        trainer = getattr(subject, "trainer", None)
        number = subject.epoch if trainer is None else trainer.current_epoch
        if number is not None:
            self._loop.epoch_begins(int(number + _ROUNDING))


class Interrupted(LoopMoment):
    """Gate of a framework's exception handler. It opens no section, but notes the run's failure."""

    def of(self, subject: Any = None) -> Any:
        """Note ``subject`` as the run's failure if it is a KeyboardInterrupt."""
        run = current()
        # Other exceptions are not noted: the framework raises them again, and the program may catch
        # them.
        if run is not None and isinstance(subject, KeyboardInterrupt):
            run._note_failure(subject)
        return UNSEEN


COLLECTIVES: Final = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier",
)  # fmt: skip
"""Section names of collectives, category communication."""


class Collective(LoopMoment):
    """Moment of a collective, recorded only inside steps, e.g. not before the first step."""

    def of(self, subject: Any = None) -> Any:
        """Return the context for a collective; inside another moment, it belongs to that moment."""
        if self._loop.depth or not self._loop.step.is_open:
            return UNSEEN
        return super().of(subject)

    def _settle(self, subject: Any) -> None:
        """Keep a paused wait open, because ranks may synchronise during a validation."""


class EvaluationMode(LoopMoment):
    """Gate of ``eval()`` of a module: notes the time of the switch, opens no section."""

    def of(self, subject: Any = None) -> Any:
        """Note the time of the first of several consecutive calls."""
        if LoopThread.is_here():
            safely(_note)
        return UNSEEN


class Evaluation(EvaluationMode):
    """Gate of a framework's call that validates, or that is part of a validation."""

    def of(self, subject: Any = None) -> Any:
        """Note a validation's start, unless one is open; the context notes the call's end."""
        if not LoopThread.is_here() or self._loop.depth:
            return UNSEEN
        if not self._loop.validation.is_open:
            safely(_note)
        return self

    def __enter__(self) -> None:
        self.busy = True

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.busy = LoopMoment.is_off
        safely(self._loop.over, time.monotonic_ns())


class Evaluator(EvaluationMode):
    """Gate of ignite's ``Engine.run``; evaluators run inside the call of their trainer."""

    def of(self, subject: Any = None) -> Any:
        """End the validation of the previous evaluator, and note the start of the next."""
        if not LoopThread.is_here() or self._loop.depth:
            return UNSEEN
        safely(self._loop.evaluation_begins)
        safely(_note)
        return UNSEEN


def _note() -> None:
    recorder = active()
    if recorder is not None:
        number = recorder.next_id()
        if number != LoopMoment.switched_id + 1:
            LoopMoment.switched_ns = time.monotonic_ns()
        LoopMoment.switched_id = number


_MAX_PARAMETERS: Final = 8
"""Maximum number of parameters whose update count is read: mostly, all have the same count."""


class OptimizerPrepared(LoopMoment):
    """Preparation of an optimizer's state, without a section; an update in it does not count."""

    def _begins(self, subject: Any) -> None:
        pass


class OptimizerRestored(LoopMoment):
    """Restoring of an optimizer's state, without a section; only the loop is notified."""

    def _begins(self, subject: Any) -> None:
        updates = count_updates(subject)
        if updates:
            self._loop.optimizer_restored(updates)


def count_updates(state: object) -> int:
    """Return the number of updates in an optimizer's ``state_dict()``; 0 if none can be read."""
    of_parameters = state.get("state") if isinstance(state, Mapping) else None
    if not isinstance(of_parameters, Mapping):
        return 0
    return max(map(_count, islice(of_parameters.values(), _MAX_PARAMETERS)), default=0)


def _count(of_parameter: object) -> int:
    step: Any = of_parameter.get("step") if isinstance(of_parameter, Mapping) else None
    # A count on a device is not read: that would wait for the device.
    device: Any = getattr(step, "device", None)
    if device is not None and (device.type != "cpu" or step.numel() != 1):
        return 0
    return int(step) if device is not None or isinstance(step, int | float) else 0


_DEPTH: Final = 4
"""Maximum depth of containers around a tensor that are searched."""
_HOST: Final = "cpu"


class _AtHost:
    type: Final = _HOST


_AT_HOST: Final = _AtHost()


class Transfer(LoopMoment):
    """Transfer of a batch to the device; the subject is a pair of batch and device."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(names.TRANSFER, loop)

    def of(self, subject: Any = None) -> Any:
        """Return the context for a transfer; inside another moment, it belongs to that moment."""
        if self._loop.depth or subject is None or not _moves(*subject):
            return UNSEEN
        return super().of(subject)

    def _settle(self, subject: Any) -> None:
        # The wait is closed, but stays paused: a generator may still request the next batch after
        # it has moved this one.
        if LoopMoment.paused is not None:
            LoopMoment.paused.settle()


def _moves(batch: Any, device: Any) -> bool:
    """Return whether the transfer moves the batch from the host to a device.

    The batch's first tensor decides.
    """
    try:
        kind = getattr(device, "type", device)
        if kind == _HOST:
            return False
        first = _first(batch, _DEPTH)
        # An object without a device counts as on the host: its class manages the content itself.
        return first is not None and getattr(first, "device", _AT_HOST).type == _HOST
    except Exception as error:
        if is_foreign(error):
            raise
        return False


def _first(batch: Any, depth: int) -> Any:
    """Return the first movable item within ``depth`` levels of containers; None if none exists."""
    parts = batch.values() if isinstance(batch, Mapping) else batch
    if parts is batch and not isinstance(batch, list | tuple):
        return batch if hasattr(batch, "to") else None
    if not depth:
        return None
    return next((one for part in parts if (one := _first(part, depth - 1)) is not None), None)


class CapturedUpdates:
    """Captured CUDA graphs that contain updates of parameters."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._before = 0

    def __contains__(self, graph: object) -> bool:
        return graph in self._graphs

    def begin(self, _graph: Any) -> None:
        """Note the start of a capture. Called in the loop's thread."""
        self._before = self._loop.updates

    def end(self, graph: Any) -> None:
        """Note the end of a capture; remember ``graph`` if the capture contained an update."""
        if self._loop.updates > self._before:
            self._graphs.add(graph)
            self._loop.captured()


class Capture(LoopMoment):
    """Gate of the start, or of the end, of graph captures. It opens no section."""

    def __init__(self, loop: Loop, captured: CapturedUpdates, *, is_begin: bool) -> None:
        super().__init__("capture_begin" if is_begin else "capture_end", loop)
        self._notify: Final = captured.begin if is_begin else captured.end

    def of(self, subject: Any = None) -> Any:
        """Note that a capture into the graph ``subject`` starts or ends."""
        if super().of() is self:
            safely(self._notify, subject)
        return UNSEEN


class Replay(LoopMoment):
    """Replay of a CUDA graph that contains an update of parameters."""

    def __init__(self, loop: Loop, captured: CapturedUpdates) -> None:
        super().__init__(names.SPAN_GRAPH_REPLAY, loop)
        self._captured = captured

    def of(self, subject: Any = None) -> Any:
        """Return the context for a replay of the graph ``subject``."""
        if self._loop.depth or subject not in self._captured:
            return UNSEEN
        return super().of(subject)

    def _begins(self, subject: Any) -> None:
        self._loop.update_begins(subject)
        super()._begins(subject)
        self._loop.updated(subject)


_PICKLES_TENSORS: Final = "torch.storage"


class Checkpoint(OtherWork):
    """Writing or reading of a checkpoint file."""

    def __init__(self, name: str, direction: str, loop: Loop) -> None:
        super().__init__(name, loop)
        self.whole = WholeCheckpoint(name, loop)
        """Moment of the framework's call that may contain this moment."""
        self._direction = direction
        self._io: CheckpointIo | None = None

    def of(self, subject: Any = None) -> Any:
        """Return the context for a call with ``subject``, the checkpoint's file."""
        if sys._getframe(2).f_globals.get("__name__") == _PICKLES_TENSORS:
            return UNSEEN  # a tensor is pickled, for another process or to be copied
        return super().of(subject)

    def _begins(self, subject: Any) -> None:
        super()._begins(subject)
        self._io = CheckpointIo(self._direction, subject)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        written, self._io = self._io, None
        try:
            if written is not None and kind is None:
                self.whole.size += written.end(self._section)
        finally:
            super().__exit__(kind, error, traceback)


class WholeCheckpoint(OtherWork):
    """A framework's call that writes or reads all files of a checkpoint."""

    size = 0
    """Number of bytes of the checkpoint's files so far."""

    def _begins(self, subject: Any) -> None:
        super()._begins(subject)
        self.size = 0

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if self.size and kind is None:
                safely(set_size, self._section, self.size, clock() - self._began_ns)
        finally:
            super().__exit__(kind, error, traceback)
