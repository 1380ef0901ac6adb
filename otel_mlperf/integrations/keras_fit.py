"""Integration of Keras 3: ``fit``, ``evaluate`` and ``save`` of a model.

Epochs, steps, validations and checkpoints are recorded on every backend. On the torch backend, the
torch integration records the parts of a step, except the update, which is recorded here. On other
backends a step is one compiled call. Its sections are that call and, on JAX, the wait for its
batch.
"""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.integrations.integration import harmless
from otel_mlperf.integrations.torch_loop import own_steps
from otel_mlperf.recorder.api.epochs import epoch, phase
from otel_mlperf.recorder.api.span import active, span
from otel_mlperf.recorder.api.step import mark_step, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from otel_mlperf.recorder.api.block import Block

_CALL: Final = "train_batch"
"""Section of a compiled call that contains forward, backward and update."""
_CALLBACKS: Final = "callbacks"
"""Section of the program's callbacks after a batch, including the wait for the batch's result."""


class KerasFit:
    """Integration of Keras: sections of the active run around a model's methods and callbacks."""

    name: Final = "keras"
    module: Final = "keras"
    needs: Final = (
        "Model.fit",
        "Model.evaluate",
        "Model.save",
        "Model.save_weights",
        "Model.load_weights",
        "Model.train_on_batch",
        "backend.backend",
        "callbacks.CallbackList.on_epoch_begin",
        "callbacks.CallbackList.on_train_batch_begin",
        "callbacks.CallbackList.on_train_batch_end",
        "callbacks.CallbackList.on_epoch_end",
        "optimizers.Optimizer.apply",
    )

    def __init__(self) -> None:
        self._is_on = self._is_in_place = False
        self._epoch: Block | None = None
        self._call: Block | None = None

    def switch_on(self, framework: ModuleType) -> None:
        """Start recording every ``fit``."""
        self._is_on = True
        if self._is_in_place:
            return
        self._is_in_place = True
        model, callback_list = framework.Model, framework.callbacks.CallbackList
        self._put_around(model, "fit", self._fit)
        self._put_around(model, "evaluate", self._validation)
        self._put_around(model, "train_on_batch", _step)
        for saves in ("save", "save_weights"):
            self._put_around(model, saves, _saving)
        self._put_around(model, "load_weights", _loading)
        # The callback list is wrapped instead of adding a callback: an additional callback would
        # make Keras wait for the result of each batch.
        self._notify(callback_list, "on_epoch_begin", after=self._begin_epoch)
        self._notify(callback_list, "on_epoch_end", before=self._end_epoch)
        self._put_around(callback_list, "on_train_batch_end", _as_section(_CALLBACKS))
        if framework.backend.backend() == "torch":
            self._put_around(framework.optimizers.Optimizer, "apply", _as_section(names.OPTIMIZER))
            self._notify(callback_list, "on_train_batch_end", after=self._end_batch)
        else:
            self._notify(callback_list, "on_train_batch_begin", after=self._begin_call)
            self._notify(callback_list, "on_train_batch_end", self._end_call, self._end_batch)
            self._time_batches()

    def switch_off(self) -> None:
        """Stop recording Keras; the wrapped methods then only call Keras's original methods."""
        self._is_on = False

    @harmless
    def _begin_epoch(self, number: int = 0) -> None:
        self._end_epoch()
        self._epoch = epoch(number)
        self._epoch.__enter__()
        mark_step()

    @harmless
    def _end_epoch(self, *_: Any) -> None:
        """End the epoch, which cancels the step that was opened after the last batch."""
        self._end_call()
        ended, self._epoch = self._epoch, None
        _leave(ended)

    @harmless
    def _end_batch(self, *_: Any) -> None:
        if self._epoch is not None:
            mark_step()

    @harmless
    def _begin_call(self, *_: Any) -> None:
        self._call = span(_CALL)
        self._call.__enter__()

    @harmless
    def _end_call(self, *_: Any) -> None:
        ended, self._call = self._call, None
        _leave(ended)

    def _validation(self, *_: Any, **__: Any) -> Any:
        self._end_epoch()
        recorder = active()
        is_reported = recorder is not None and recorder.registry.phase == names.VALIDATE
        return nullcontext() if is_reported else phase(names.VALIDATE)

    @contextmanager
    def _fit(self, *_: Any, **__: Any) -> Iterator[None]:
        with own_steps():
            try:
                yield
            finally:
                self._end_epoch()

    def _put_around(self, kind: type, name: str, block: Callable[..., Any]) -> None:
        method = getattr(kind, name)

        @functools.wraps(method)
        def call(*given: Any, **named: Any) -> Any:
            if not self._is_on:
                return method(*given, **named)
            with block(*given, **named):
                return method(*given, **named)

        setattr(kind, name, call)

    def _notify(
        self,
        kind: type,
        name: str,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
    ) -> None:
        method = getattr(kind, name)

        @functools.wraps(method)
        def call(instance: Any, *given: Any, **named: Any) -> Any:
            if self._is_on and before is not None:
                before(*given, **named)
            answer = method(instance, *given, **named)
            if self._is_on and after is not None:
                after(*given, **named)
            return answer

        setattr(kind, name, call)

    def _time_batches(self) -> None:
        """Record the waits of JAX's batch iterator, which Keras does not expose to callbacks.

        The compiled call requests its batches from this iterator itself.
        """
        backend = sys.modules.get("keras.src.backend.jax.trainer")
        kind = getattr(backend, "JAXEpochIterator", None)
        method = getattr(kind, "_get_iterator", None)
        if kind is None or method is None:
            return

        @functools.wraps(method)
        def timed(iterator: Any) -> Any:
            batches = method(iterator)
            return _Waits(iter(batches)) if self._is_on else batches

        kind._get_iterator = timed


def _step(*_: Any, **__: Any) -> Block:
    return step()


def _as_section(name: str) -> Callable[..., Block]:
    return lambda *_, **__: span(name)


@contextmanager
def _file(name: str, direction: str, file: Any) -> Iterator[None]:
    from otel_mlperf.pytorch.loop.checkpoint_io import CheckpointIo

    with span(name) as section:
        # A JSON file is only the index of a checkpoint of several files: its size is not the
        # checkpoint's.
        is_whole = not str(file).endswith(".json")
        io = CheckpointIo(direction, file if is_whole else None)
        yield
        io.end(section)


def _saving(_model: Any, filepath: Any = None, *_: Any, **__: Any) -> Any:
    return _file(names.SPAN_CHECKPOINT, names.CHECKPOINT_WRITE, filepath)


def _loading(_model: Any, filepath: Any = None, *_: Any, **__: Any) -> Any:
    return _file(names.SPAN_CHECKPOINT_LOAD, names.CHECKPOINT_READ, filepath)


def _leave(block: Block | None) -> None:
    if block is not None:
        block.__exit__(None, None, None)


class _Waits:
    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner

    def __iter__(self) -> _Waits:
        return self

    def __next__(self) -> Any:
        with span(names.SPAN_DATA):
            return next(self._inner)
