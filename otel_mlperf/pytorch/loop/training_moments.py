"""Moments of training: forward, loss, backward pass and optimizer step.

Only the outermost module counts; calls inside a backward pass or a loader are part of the pass or
of the wait. Calls inside an optimizer's closure are recorded. Updates in other threads and tasks
than the loop's are only counted, so that they can be reported.

Some figures are read at only a few updates or calls of a run: at each they would cost too much.
They are the maximum size of an optimizer's history, the number of collectives per update, and DDP's
statistics of its gradient exchange.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.pytorch.loop.collective_count import StepCollectives, count_collectives
from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment, clock
from otel_mlperf.pytorch.loop_thread import LoopThread
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.instruments.graph_size import examine_pass
from otel_mlperf.recorder.sections.section_context import CURRENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_mlperf.pytorch.loop.step_inference import Loop
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

_KEPT: Final = 2
"""Tensors stored per iteration of the history: a direction and a difference of gradients."""


def history_bytes(optimizer: Any) -> int:
    """Return the maximum bytes of an optimizer's history in host memory; 0 if it has no history."""
    return sum(_of_group(group) for group in getattr(optimizer, "param_groups", ()))


def _of_group(group: dict[str, Any]) -> int:
    size = group.get("history_size")
    if not isinstance(size, int):
        return 0
    total: int = sum(one.numel() * one.element_size() for one in group["params"] if one.is_cpu)
    return _KEPT * size * total


EXCHANGE_PASSES: Final = (20, 200, 2_000)
"""Numbers of the calls of a DDP module at which its statistics are read; a read costs 11 µs."""
WRAPPER: Final = "DistributedDataParallel"


def read_exchange(wrapper: Any) -> Iterator[tuple[names.Metric, float]]:
    """Yield metrics and values of DDP's gradient exchange so far; ``wrapper`` is a DDP module."""
    logged = wrapper._get_ddp_logging_data()
    taken_ns = logged.get("avg_backward_comm_time", 0)
    overlap_ns = logged.get("avg_backward_compute_comm_overlap_time", 0)
    if taken_ns:
        yield names.DDP_EXPOSED_COMMUNICATION, max(0.0, (taken_ns - overlap_ns) / 1e9)
    # DDP rebuilds its buckets after the first pass, in the order in which gradients are ready.
    buckets = _sizes(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
    if buckets:
        yield names.DDP_BUCKETS, len(buckets)
        yield names.DDP_GRADIENTS, sum(buckets)


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size.strip()]


UPDATES: Final = (2, 20, 200)
"""Updates of a run at which figures are read: the first one may be atypical."""


class FewUpdates:
    """Counter of a run's updates; records history size and collectives at a few updates."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._updates = self._collectives = 0

    def begins(self, recorder: Recorder | None, optimizer: Any) -> None:
        """Count a starting update; at a few updates of a run, record history and collectives."""
        if recorder is not self._recorder:
            self._recorder, self._updates = recorder, 0
        self._updates += 1
        if self._updates in UPDATES and recorder is not None:
            recorder.kept.pop(StepCollectives, None)  # counts per update are more precise
            _record(recorder, names.OPTIMIZER_HISTORY, history_bytes(optimizer))
            _record(recorder, names.COLLECTIVES, self._collectives_an_update())

    def _collectives_an_update(self) -> float:
        """Return the collectives per update since the first count; 0.0 at the first count."""
        counted, since = count_collectives(), self._updates - UPDATES[0]
        if not since:
            self._collectives = counted
        return (counted - self._collectives) / max(since, 1)


def _record(recorder: Recorder, metric: names.Metric, value: float) -> None:
    if value > 0:  # zero values would only take space
        recorder.cells.set(metric.name, metric.unit, value)


class UpdatesOutsideLoop:
    """Counts of optimizer steps outside the loop, by thread or task."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def count(self, key: int) -> None:
        """Count an update of thread or task ``key``; only one thread may count with this key."""
        self._counts[key] = self._counts.get(key, 0) + 1

    def count_outside(self, recorder: Recorder) -> None:
        """Count an update if the open step belongs to another asyncio task or greenlet."""
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
    """Moment of the outermost call of a module; a loss has its own section name."""

    def __init__(self, loop: Loop, records: Callable[[], bool], losses: type) -> None:
        super().__init__(names.FORWARD, loop)
        self._records = records
        self._losses = losses
        self._known: dict[type, bool] = {}
        self._exchanges: tuple[Recorder | None, int] = None, 0
        """Run, and number of calls of DDP modules in that run."""

    def _begins(self, subject: Any) -> None:
        kind = type(subject)
        is_loss = self._known.get(kind)
        if is_loss is None:
            is_loss = self._known[kind] = self._is_loss(subject)
        if not is_loss:
            self._loop.forward_begins(subject, records=self._records())
            if kind.__name__ == WRAPPER:
                self._read_exchange(subject)
        self._open(names.SPAN_LOSS if is_loss else names.FORWARD)

    def _read_exchange(self, wrapper: Any) -> None:
        recorder, calls = self._exchanges
        calls = calls + 1 if recorder is self._recorder else 1
        self._exchanges = self._recorder, calls
        if calls in EXCHANGE_PASSES and self._recorder is not None:
            for metric, value in read_exchange(wrapper):
                self._recorder.cells.set(metric.name, metric.unit, value)

    def _is_loss(self, module: Any) -> bool:
        """Return whether a module is a torch loss, or is named ``…Loss`` and has no parameters."""
        if isinstance(module, self._losses):
            return True
        is_named_loss = type(module).__name__.endswith("Loss")
        return is_named_loss and next(iter(module.parameters()), None) is None


class Backward(LoopMoment):
    """Moment of the backward pass; the operations of a few passes are counted."""

    def _begins(self, subject: Any) -> None:
        self._loop.backward_begins()
        if self._recorder is not None:
            examine_pass(self._recorder.kept, self._recorder.cells, subject)
        self._open(self.name)


class Update(LoopMoment):
    """Moment of an optimizer's step, called directly or by a gradient scaler."""

    def __init__(self, loop: Loop) -> None:
        super().__init__(names.OPTIMIZER, loop)
        self._optimizers: list[Any] = []
        self._few = FewUpdates()
        self.others = UpdatesOutsideLoop()

    def of(self, subject: Any = None) -> Any:
        """Return the context for an optimizer's step; a step in another thread is only counted."""
        ident = _get_ident()
        if ident == LoopThread.ident:
            self._began_ns = clock()
            self._subject = subject
            return self
        # Not counted during the loop's backward pass: there, autograd's thread updates for the
        # loop.
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
        except BaseException as error:  # ``__exit__`` is not called after a failed ``__enter__``
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
                try:  # inlined `safely`: a call would cost
                    self._loop.updated(optimizer)
                except Exception as problem:  # noqa: BLE001 - recording never raises
                    internal_error(problem)
        finally:
            self._optimizers = self._optimizers[:-1]
            if not self._optimizers:
                LoopMoment.__exit__(self, kind, error, traceback)  # `super()` would be a call

    def _begins(self, subject: Any) -> None:
        self._loop.update_begins(subject)
        self._few.begins(self._recorder, subject)
        self._open(self.name)
        if self._recorder is not None and self._loop.step.is_open:
            self.others.count_outside(self._recorder)


class WrappedUpdate(LoopMoment):
    """Gate of a framework's optimizer wrapper; only calls that step the optimizer are recorded."""

    def __init__(self, update: Update) -> None:
        super().__init__("wrapped", update._loop)
        self._update = update

    def of(self, subject: Any = None) -> Any:
        """Return the context for a call of the wrapper ``subject``."""
        # accelerate's wrapper is called for each batch, but steps the optimizer only at the end of
        # an accumulation.
        steps_now = getattr(getattr(subject, "gradient_state", None), "sync_gradients", True)
        optimizer = getattr(subject, "optimizer", None)
        if self._update.busy or optimizer is None or not steps_now:
            return UNSEEN
        return self._update.of(optimizer)


class WrappedBackward(LoopMoment):
    """Gate of accelerate's call around the backward pass, if the call only does that pass."""

    def __init__(self, backward: Backward) -> None:
        super().__init__("wrapped_backward", backward._loop)
        self._backward = backward

    def of(self, subject: Any = None) -> Any:
        """Return the context for a call; ``subject`` is a pair of accelerator and loss."""
        accelerator, loss = subject or (None, None)
        backend = getattr(accelerator, "distributed_type", None)
        # DeepSpeed's call also updates; Megatron's does nothing.
        if self._backward.busy or backend in (None, "DEEPSPEED", "MEGATRON_LM"):
            return UNSEEN
        return self._backward.of(loss)


class TrainingStep(LoopMoment):
    """Moment of the user's own ``training_step`` under Lightning.

    ``training_step`` runs in the closure of an update, and would otherwise count as time of the
    update.
    """

    depth = 0

    def of(self, subject: Any = None) -> Any:
        """Return the context for a call by the Lightning strategy ``subject``."""
        module = getattr(subject, "lightning_module", None)
        # With manual optimization, the program updates inside, and may start a step there.
        is_automatic = getattr(module, "automatic_optimization", False)
        return super().of() if is_automatic and self._loop.step.is_open else UNSEEN


class OptimizerMade(LoopMoment):
    """Construction of an optimizer. It opens no section; only the loop is notified."""

    def _begins(self, subject: Any) -> None:
        self._loop.optimizer_made(subject)
