"""Steps of a loop over batches: ``steps()`` and its iterators.

A step opens before ``next()``, so that the wait for data is part of it (child ``data.load``), and
ends at the following ``next()``. Iterators are objects, not generators: leaving the loop drops
them, which ends the step immediately.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from otel_mlperf import names
from otel_mlperf.recorder.api.span import active, is_compiling, note_unrecorded, span
from otel_mlperf.recorder.core.faults import internal_error, try_again, warn_once
from otel_mlperf.recorder.core.interrupts import at_once, raises_afterwards
from otel_mlperf.recorder.core.scrub import describe_exception, is_failure
from otel_mlperf.recorder.instruments.batch_padding import look_for_padding
from otel_mlperf.recorder.stepping.abandoned_loops import is_suspicious
from otel_mlperf.recorder.stepping.batch_size import count_elements, count_samples, count_tokens
from otel_mlperf.recorder.stepping.planned_steps import find_batches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep

T = TypeVar("T")


class Steps(Generic[T]):
    """An iterable whose passes are recorded as steps; see ``steps()``."""

    def __init__(
        self,
        iterable: Iterable[T],
        accumulate: int = 1,
        samples: Literal["auto"] | int | Callable[[Any], int] | None = "auto",
        tokens: Literal["auto"] | int | Callable[[Any], int] | None = "auto",
        total: int | None = None,
    ) -> None:
        self.iterable = iterable
        self.accumulate = accumulate
        self.samples, self.tokens, self.total = samples, tokens, total

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        """Return a new pass."""
        inner = iter(self.iterable)
        recorder = active()
        if recorder is None or is_compiling():
            note_unrecorded("steps()")
            return inner
        _expect(recorder, self)
        return StepIterator(self, inner)

    def __aiter__(self) -> AsyncIterator[T]:
        """Return a new asynchronous pass."""
        inner: AsyncIterator[T] = aiter(cast("Any", self.iterable))
        recorder = active()
        if recorder is None:
            note_unrecorded("steps()")
            return inner
        _expect(recorder, self)
        return AsyncStepIterator(self, inner)


def steps(
    iterable: Iterable[T],
    *,
    accumulate: int = 1,
    samples: Literal["auto"] | int | Callable[[Any], int] | None = "auto",
    tokens: Literal["auto"] | int | Callable[[Any], int] | None = "auto",
    total: int | None = None,
) -> Steps[T]:
    """Record the turns of a loop as steps.

    It also works with ``async for``, may be iterated any number of times, and keeps ``len()``.

    Args:
        iterable: yields the batches.
        accumulate: number of batches per step, with a ``micro_step`` section each.
        samples: samples of a batch: a number, a function of the batch, None, or "auto": the leading
            dimension (its shape is read, never its content).
        tokens: tokens of a batch: a number, a function of the batch, None, or "auto": the number of
            elements of the matrix ``input_ids``, where the batch is a mapping that has one.
        total: number of planned steps of the whole training, for the remaining time; within
            ``epochs()`` it is known for lists, tuples, ranges and loaders of PyTorch.

    Raises:
        ValueError: ``accumulate`` is no whole number of at least 1, or ``total`` is no number.
    """
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(
            f"steps(): accumulate is {accumulate!r}, expected a whole number of at least 1"
        )
    if total is not None and not isinstance(total, int | float):
        raise ValueError(f"steps(): total is {total!r}, expected the number of planned steps")
    return Steps(iterable, accumulate, samples, tokens, total)


def _expect(recorder: Recorder, of: Steps[Any]) -> None:
    try:
        total = _planned(recorder, of) if of.total is None else of.total
        if total is not None:
            metric = names.STEPS_EXPECTED
            recorder.cells.set(metric.name, metric.unit, float(total))
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)


def _planned(recorder: Recorder, of: Steps[Any]) -> int | None:
    """Return the steps so far plus those of all remaining epochs; None if unknown."""
    left = recorder.stepping.epochs_left
    batches = find_batches(of.iterable) if left else None
    if batches is None or recorder.registry.phase != names.TRAIN:
        return None
    return recorder.stepping.next_number() + left * -(-batches // of.accumulate)


class _Turns:
    """The step that is open between two batches; shared by both kinds of iterators."""

    def __init__(self, of: Steps[Any]) -> None:
        self._of = of
        self._recorder: Recorder | None = None
        self._step: OpenStep | None = None
        self._micro: Any = None
        self._count = 0
        self._wait: Any = None

    def before(self) -> None:
        """End what the last batch opened, and open what the next batch needs.

        Everything open is known here until it has ended, so that ``failed`` finds what an interrupt
        has left.
        """
        try:
            if self._micro is not None:
                self._end_micro()
            now = time.monotonic_ns()  # a section that ends after its step is concurrent
            if self._step is not None and self._count >= self._of.accumulate:
                self._end(now)
            recorder = self._recorder = active()
            if recorder is None:
                return
            if self._step is None:
                # Before it is known whether there is a batch: the wait for it is part of the step.
                # If there is none, exhausted() cancels the step and with it its number.
                self._count = 0
                self._step = recorder.stepping.begin()
                if self._step is None:
                    warn_once("steps() inside a step of the same phase: only the outer step counts")
            if self._of.accumulate > 1 and self._step is not None:
                number = {names.MICRO_STEP: self._count}
                self._micro = recorder.sections.enter(names.SPAN_MICRO_STEP, names.OTHER, number)
            self._wait = span(names.SPAN_DATA).__enter__()
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def after(self, batch: Any) -> None:
        """Count the batch that has arrived."""
        try:
            if self._wait is not None:
                self._wait.__exit__(None, None, None)
                self._wait = None
            self._count += 1
            step = self._step
            if step is not None:
                samples, tokens = self._of.samples, self._of.tokens
                if samples is not None:
                    step.samples = _added(step.samples, count_samples(batch, samples))
                    step.elements = _added(step.elements, count_elements(batch))
                    if self._recorder is not None:
                        look_for_padding(self._recorder.kept, self._recorder.cells, batch)
                if tokens is not None:
                    step.tokens = _added(step.tokens, count_tokens(batch, tokens))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def exhausted(self) -> None:
        """Cancel what was opened for a batch that did not come."""
        try:
            recorder = self._recorder
            if recorder is None:
                return
            for section in (self._wait, self._micro):
                if section is not None:
                    recorder.sections.leave(section)
                    recorder.stepping.cancel_section(section)
            self._wait = self._micro = None
            if self._step is not None:
                if self._count:
                    recorder.stepping.end(self._step)
                else:
                    recorder.stepping.cancel(self._step)
            self._step = self._recorder = None
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    @at_once
    def failed(self, error: BaseException) -> None:
        """End the step with an error: the iterable raised, or something inside the recorder."""
        try:
            self._fail(error)
        except BaseException as problem:  # noqa: BLE001 - foreign exceptions propagate
            try_again(self._fail, error)
            internal_error(problem)

    def _fail(self, error: BaseException) -> None:
        recorder, step = self._recorder, self._step
        if self._wait is not None:
            self._wait.__exit__(type(error), error, None)
        self._end_micro(error)
        self._wait = None
        if recorder is not None and step is not None:
            words = describe_exception(error, with_text=recorder.config.exception_text)
            recorder.stepping.end(step, 0, words if is_failure(error) else None)
        self._step = self._recorder = None

    def close(self) -> None:
        """End the step of a loop that is left before its end."""
        try:
            self._end_micro()
            self._end(time.monotonic_ns())
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    @at_once
    def drop(self) -> None:
        """End the step of an iterator that is no longer referenced."""
        # Called by a finalizer: at any moment and in any thread, also after the end of the run.
        try:
            # It may have been interrupted in its constructor: then it has no step.
            step = getattr(self, "_step", None)
            if step is not None and step.section.at:
                self._end_micro()
                self._abandon(is_suspicious=is_suspicious(3))
        except BaseException as error:  # noqa: BLE001 - foreign exceptions propagate
            try_again(self._end, 0)
            internal_error(error)

    def _abandon(self, *, is_suspicious: bool) -> None:
        if self._step is not None and self._recorder is not None:
            stepping = self._recorder.stepping
            end = stepping.ending(self._step)
            stepping.abandoned.add(self._step.section, end, is_suspicious=is_suspicious)

    # The interpreter would drop what a signal handler raises in a finalizer.
    __del__ = raises_afterwards(drop)

    def _end(self, t1: int) -> None:
        if self._step is not None and self._recorder is not None:
            self._recorder.stepping.end(self._step, t1)
        self._step = None

    def _end_micro(self, error: BaseException | None = None) -> None:
        if self._micro is not None:
            self._micro.__exit__(type(error) if error else None, error, None)
            self._micro = None


class StepIterator(_Turns, Generic[T]):
    """Iterator of one pass."""

    def __init__(self, of: Steps[T], inner: Iterator[T]) -> None:
        super().__init__(of)
        self._inner = inner

    def __iter__(self) -> StepIterator[T]:
        return self

    def __len__(self) -> int:
        return len(self._of)

    def __next__(self) -> T:
        try:
            self.before()
            try:
                batch = next(self._inner)
            except StopIteration:
                self.exhausted()
                raise
            self.after(batch)
        except StopIteration:
            raise
        except BaseException as error:
            self.failed(error)
            raise
        return batch


class AsyncStepIterator(_Turns, Generic[T]):
    """Asynchronous iterator of one pass."""

    def __init__(self, of: Steps[T], inner: AsyncIterator[T]) -> None:
        super().__init__(of)
        self._inner = inner

    def __aiter__(self) -> AsyncStepIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            self.before()
            try:
                batch = await anext(self._inner)
            except StopAsyncIteration:
                self.exhausted()
                raise
            self.after(batch)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self.failed(error)
            raise
        return batch

    async def aclose(self) -> None:
        """End the pass."""
        self.close()


def _added(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
