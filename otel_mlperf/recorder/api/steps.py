"""The public call ``steps``, and its iterators, which record the steps of a loop over batches.

A step starts before ``next()``, so that it includes the wait for data (child ``data.load``), and
ends at the following ``next()``. The iterators are objects instead of generators: when a loop is
left, the iterator is released, and its finalizer ends the step immediately.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from otel_mlperf import names
from otel_mlperf.recorder.api.span import active, is_compiling, note_unrecorded, span
from otel_mlperf.recorder.core.faults import internal_error, try_again, warn_once
from otel_mlperf.recorder.core.interrupts import at_once, raises_afterwards
from otel_mlperf.recorder.core.scrub import describe_exception, is_failure
from otel_mlperf.recorder.instruments.batch_padding import examine_padding
from otel_mlperf.recorder.stepping.abandoned_loops import is_suspicious
from otel_mlperf.recorder.stepping.batch_size import count_elements, count_samples, count_tokens
from otel_mlperf.recorder.stepping.planned_steps import find_batches

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep

T = TypeVar("T")


class Steps(Generic[T]):
    """Iterable of batches whose iterations are recorded as steps; see ``steps()``."""

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
        """Return an iterator that records steps; the plain iterator if nothing is recorded."""
        inner = iter(self.iterable)
        recorder = active()
        if recorder is None or is_compiling():
            note_unrecorded("steps()")
            return inner
        _expect(recorder, self)
        return StepIterator(self, inner)

    def __aiter__(self) -> AsyncIterator[T]:
        """Return an async iterator that records steps; the plain one if nothing is recorded."""
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
    """Record the iterations of a loop as steps.

    The result also supports ``async for`` and ``len()``, and may be iterated repeatedly.

    Args:
        iterable: yields the batches.
        accumulate: number of batches per step, each with a section ``micro_step``.
        samples: number of samples in a batch, a function of the batch, None, or "auto": the leading
            dimension (from the batch's shape, without reading its content).
        tokens: number of tokens in a batch, a function of the batch, None, or "auto": the number of
            elements of the matrix ``input_ids``, if the batch is a mapping that contains it.
        total: number of planned steps of the whole training, to estimate the remaining time
            (default: derived inside ``epochs()`` for lists, tuples, ranges and PyTorch loaders).

    Raises:
        ValueError: ``accumulate`` is not an integer of at least 1, or ``total`` is not a number.
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
    """Return the number of past steps plus those of all remaining epochs; None if unknown."""
    remaining_epochs = recorder.stepping.epochs_left
    batches = find_batches(of.iterable) if remaining_epochs else None
    if batches is None or recorder.registry.phase != names.TRAIN:
        return None
    return recorder.stepping.next_number() + remaining_epochs * -(-batches // of.accumulate)


class _Turns:
    """Base of both iterators: the open step, its micro step and its wait for a batch."""

    def __init__(self, of: Steps[Any]) -> None:
        self._of = of
        self._recorder: Recorder | None = None
        self._step: OpenStep | None = None
        self._micro: Any = None
        self._count = 0
        self._wait: Any = None

    def before(self) -> None:
        """End the sections of the last batch, and open those of the next batch.

        Attributes refer to open sections until they have ended, so that ``failed`` can end them
        after an interrupt.
        """
        try:
            if self._micro is not None:
                self._end_micro()
            now = time.monotonic_ns()  # must not precede the micro step's end
            if self._step is not None and self._count >= self._of.accumulate:
                self._end(now)
            recorder = self._recorder = active()
            if recorder is None:
                return
            if self._step is None:
                # Open the step before requesting the batch, because it includes the wait. Without a
                # batch, exhausted() cancels the step, and its number is reused.
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
        """End the wait for a batch that has arrived, and add its size to the step."""
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
                        examine_padding(self._recorder.kept, self._recorder.cells, batch)
                if tokens is not None:
                    step.tokens = _added(step.tokens, count_tokens(batch, tokens))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    def exhausted(self) -> None:
        """Cancel the sections of a missing batch, and end or cancel the step."""
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
        """End the step as failed, because the iterable or a signal handler raised ``error``."""
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
            described = describe_exception(error, with_text=recorder.config.exception_text)
            recorder.stepping.end(step, 0, described if is_failure(error) else None)
        self._step = self._recorder = None

    def close(self) -> None:
        """End the step of a loop that is left early."""
        try:
            self._end_micro()
            self._end(time.monotonic_ns())
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)

    @at_once
    def drop(self) -> None:
        """End the step of an iterator that is no longer referenced."""
        # Called by the finalizer: at any time and in any thread, also after the end of the run.
        try:
            # The attribute is missing if the constructor was interrupted.
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

    # Raise exceptions of signal handlers afterwards: in a finalizer, the interpreter drops them.
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
    """Iterator over batches that records steps."""

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
    """Asynchronous iterator over batches that records steps."""

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
        """End the open step."""
        self.close()


def _added(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
