"""Moments of training: waits for batches, forward, backward, optimizer and loss.

The outermost module counts; what a backward pass or a loader calls is part of the backward pass or
of the wait. An optimizer's closure is recorded from inside. Updates in threads and tasks other
than the loop's are only counted, so that they can be reported.

Some figures are read at a few updates of a run only: at each they would cost too much or change
nothing. These are the size that the memory of an optimizer may reach, the number of collectives of
an update, and what DDP reports of its gradient exchange.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.pytorch.loop.collective_count import StepCollectives, count_collectives
from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment, clock, safely
from otel_mlperf.pytorch.loop_thread import LoopThread
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.instruments.graph_size import look_at_pass
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_mlperf.pytorch.loop.loop_finder import Loop
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_KEPT: Final = 2
"""Two for each iteration: a direction and a difference of gradients."""


def history_bytes(optimizer: Any) -> int:
    """Return the size of all its groups in host memory; 0 for an optimizer without history."""
    return sum(_of_group(group) for group in getattr(optimizer, "param_groups", ()))


def _of_group(group: dict[str, Any]) -> int:
    size = group.get("history_size")
    if not isinstance(size, int):
        return 0
    held: int = sum(one.numel() * one.element_size() for one in group["params"] if one.is_cpu)
    return _KEPT * size * held


EXCHANGE_PASSES: Final = (20, 200, 2_000)
"""Calls of a wrapped module at which its figures are read; once costs 11 µs."""
WRAPPER: Final = "DistributedDataParallel"


def read_exchange(wrapper: Any) -> Iterator[tuple[names.Metric, float]]:
    """Yield the figures that the wrapper has by now, as metrics and their values."""
    told = wrapper._get_ddp_logging_data()
    taken_ns = told.get("avg_backward_comm_time", 0)
    beside_ns = told.get("avg_backward_compute_comm_overlap_time", 0)
    if taken_ns:
        yield names.DDP_EXPOSED_COMMUNICATION, max(0.0, (taken_ns - beside_ns) / 1e9)
    # Rebuilt after the first pass, in the order in which gradients are ready.
    buckets = _sizes(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or "")
    if buckets:
        yield names.DDP_BUCKETS, len(buckets)
        yield names.DDP_GRADIENTS, sum(buckets)


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size.strip()]


UPDATES: Final = (2, 20, 200)
"""Updates of a run at which figures are read: the first one may be atypical."""


class FewUpdates:
    """Counter of the updates of a run, which reads figures at some of them."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._updates = self._collectives = 0

    def begins(self, recorder: Recorder | None, optimizer: Any) -> None:
        """Count the start of an update of this optimizer, in this run."""
        if recorder is not self._recorder:
            self._recorder, self._updates = recorder, 0
        self._updates += 1
        if self._updates in UPDATES and recorder is not None:
            recorder.kept.pop(StepCollectives, None)  # the count by update is more precise
            _record(recorder, names.OPTIMIZER_HISTORY, history_bytes(optimizer))
            _record(recorder, names.COLLECTIVES, self._collectives_an_update())

    def _collectives_an_update(self) -> float:
        """Return the collectives per update since the first count; 0.0 at that one."""
        counted, since = count_collectives(), self._updates - UPDATES[0]
        if not since:
            self._collectives = counted
        return (counted - self._collectives) / max(since, 1)


def _record(recorder: Recorder, metric: names.Metric, value: float) -> None:
    if value > 0:  # zero values would only take space
        recorder.cells.set(metric.name, metric.unit, value)


class OtherUpdates:
    """Counts of optimizer steps by thread or task."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def count(self, key: int) -> None:
        """Add one; each key has one thread that adds to it."""
        self._counts[key] = self._counts.get(key, 0) + 1

    def count_outside(self, recorder: Recorder) -> None:
        """Add one if the open step is another task's, of asyncio or a greenlet."""
        if recorder.parents.step_around(CURRENT.get()) is not None:
            return
        tasks: Any = sys.modules.get("asyncio.tasks")
        is_running = tasks is not None and tasks.events._get_running_loop() is not None
        self.count(id(tasks.current_task()) if is_running else 0)

    def record(self, recorder: Recorder) -> None:
        """Write the counts since the last call into the run; never raises."""
        counts, self._counts = self._counts, {}
        if not counts:
            return
        try:
            for metric, value in (
                (names.OTHER_UPDATES, sum(counts.values())),
                (names.OTHER_LOOPS, len(counts)),
            ):
                recorder.cells.set(metric.name, metric.unit, float(value))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


_get_ident: Final = get_ident


class Forward(LoopMoment):
    """Moment of the outermost call of a module; a call of a loss has a section of its own."""

    def __init__(self, loop: Loop, records: Callable[[], bool], losses: type) -> None:
        super().__init__(names.FORWARD, loop)
        self._records = records
        self._losses = losses
        self._known: dict[type, bool] = {}
        self._exchanges: tuple[Recorder | None, int] = None, 0
        """Number of calls of modules whose gradients DDP exchanges, and the run that they belong
        to.
        """

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
        if calls in EXCHANGE_PASSES and self._recorder is not None:
            for metric, value in read_exchange(wrapper):
                self._recorder.cells.set(metric.name, metric.unit, value)

    def _is_loss(self, module: Any) -> bool:
        """Return whether it is a loss of torch, or is named so and has nothing to learn itself."""
        if isinstance(module, self._losses):
            return True
        is_called_so = type(module).__name__.endswith("Loss")
        return is_called_so and next(iter(module.parameters()), None) is None


class Backward(LoopMoment):
    """Moment of the backward pass; the operations of a few passes are counted."""

    def _begins(self, subject: Any) -> None:
        self._loop.backward_begins()
        if self._recorder is not None:
            look_at_pass(self._recorder.kept, self._recorder.cells, subject)
        super()._begins(subject)


class Update(LoopMoment):
    """Moment of the step of an optimizer, or of a scaler that may skip it; nested steps count."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(names.OPTIMIZER, loop)
        self._optimizers: list[Any] = []
        self._few = FewUpdates()
        self.others = OtherUpdates()
        """Updates outside of the loop."""

    def of(self, subject: Any = None) -> Any:
        """Return the gate for a step of this optimizer."""
        ident = _get_ident()
        if ident == LoopThread.ident:
            self._began_ns = clock()
            self._subject = subject
            return self
        # During the loop's backward pass, it is autograd's thread that updates.
        if not self._loop.depth:
            self.others.count(ident)
        return UNSEEN

    def __enter__(self) -> None:
        optimizer, depth = self._subject, self._loop.depth
        if self._optimizers:
            self._subject, self._optimizers = None, [*self._optimizers, optimizer]
            return
        try:
            super().__enter__()
            self.busy = LoopMoment.is_off
            self._optimizers = [optimizer]
        except BaseException as error:  # Ctrl-C: a failed enter is not followed by an exit
            self._loop.depth = depth
            self._open_again()
            self._leave(error)
            raise

    @at_once
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            self._left_ns = clock()
            optimizer = self._optimizers[-1]
            if kind is None and optimizer is not None:
                safely(self._loop.updated, optimizer)
        finally:
            self._optimizers = self._optimizers[:-1]
            if not self._optimizers:
                LoopMoment.__exit__(self, kind, error, traceback)  # `super()` would be a call

    def _begins(self, subject: Any) -> None:
        self._loop.update_begins(subject)
        self._few.begins(self._recorder, subject)
        super()._begins(subject)
        if self._recorder is not None and self._loop.step.is_open:
            self.others.count_outside(self._recorder)


class WrappedUpdate(LoopMoment):
    """Step of a framework's optimizer wrapper: an update, if it steps the optimizer now."""

    def __init__(self, update: Update) -> None:
        super().__init__("wrapped", update._loop)
        self._update = update

    def of(self, subject: Any = None) -> Any:
        """Return the gate for a call of this wrapper."""
        # accelerate's is called for each batch, and passes on only the end of an accumulation.
        steps_now = getattr(getattr(subject, "gradient_state", None), "sync_gradients", True)
        optimizer = getattr(subject, "optimizer", None)
        if self._update.busy or optimizer is None or not steps_now:
            return UNSEEN
        return self._update.of(optimizer)


class WrappedBackward(LoopMoment):
    """A call of accelerate around the backward pass, if it contains nothing else."""

    def __init__(self, backward: Backward) -> None:
        super().__init__("wrapped_backward", backward._loop)
        self._backward = backward

    def of(self, subject: Any = None) -> Any:
        """Return the gate for a call with this accelerator and loss."""
        accelerator, loss = subject or (None, None)
        backend = getattr(accelerator, "distributed_type", None)
        # DeepSpeed's also updates; that of Megatron does nothing.
        if self._backward.busy or backend in (None, "DEEPSPEED", "MEGATRON_LM"):
            return UNSEEN
        return self._backward.of(loss)


class TrainingStep(LoopMoment):
    """The program's part of a step that Lightning makes, recorded as the program's own time.

    It runs in the closure of an update, and would otherwise count as that update's time.
    """

    depth = 0

    def of(self, subject: Any = None) -> Any:
        """Return the gate for a call by this strategy."""
        module = getattr(subject, "lightning_module", None)
        # With manual optimization it updates inside, and may start a step there.
        is_automatic = getattr(module, "automatic_optimization", False)
        return super().of() if is_automatic and self._loop.step.is_open else UNSEEN


class OptimizerMade(LoopMoment):
    """Construction of an optimizer: no section, only the loop is notified."""

    def _begins(self, subject: Any) -> None:
        self._loop.optimizer_made(subject)
