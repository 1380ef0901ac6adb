"""The public calls ``epochs``, ``epoch`` and ``phase``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from otel_mlperf import names
from otel_mlperf.recorder.api.block import Invisible
from otel_mlperf.recorder.api.span import active, is_compiling
from otel_mlperf.recorder.core import recording
from otel_mlperf.recorder.core.faults import internal_error, try_again, warn_once
from otel_mlperf.recorder.core.interrupts import at_once, raises_afterwards
from otel_mlperf.recorder.core.program_callbacks import PHASE
from otel_mlperf.recorder.sections.section_context import extra_of
from otel_mlperf.recorder.stepping.abandoned_loops import is_suspicious
from otel_mlperf.recorder.stepping.planned_steps import find_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from otel_mlperf.recorder.api.block import Block
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.section import Section
    from otel_mlperf.recorder.stepping.abandoned_loops import End

T = TypeVar("T")
_FRAMES = 40
"""Maximum number of stack frames that a block needs to start or end."""


def _require_stack(frames: int = _FRAMES) -> None:
    """Check that the stack suffices to start and end a block; costs 2 µs.

    Raises:
        RecursionError: it does not suffice.
    """
    if frames:
        _require_stack(frames - 1)


class _Opened:
    """State of an entered block, needed for its exit; created before its section is opened."""

    def __init__(self, recorder: Recorder, section: Section, before: Any, around: Any) -> None:
        self.recorder, self.section = recorder, section
        self.before = before
        """The previous phase or epoch, which becomes current again at the end."""
        self.around: _Opened | None = around
        """State of the enclosing entry, if the same block was entered recursively."""


class _Frame:
    """Base of epoch and phase blocks; internal errors in its methods are only counted."""

    def __init__(self) -> None:
        self._opened: _Opened | None = None

    def __enter__(self) -> Any:
        try:
            recorder = active()
            if recorder is None or is_compiling():
                return Invisible()
            _require_stack()
            return self._begin(recorder)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return Invisible()

    @at_once
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            has_started = True
            self._leave(lambda opened: opened.section.__exit__(kind, error, trace))
        except BaseException as problem:  # noqa: BLE001 - foreign exceptions propagate
            try:
                del has_started
            except UnboundLocalError:  # interrupted before the first instruction
                try_again(self._leave, lambda opened: opened.section.__exit__(kind, error, trace))
            internal_error(problem)

    @at_once
    def _leave(self, leave: Callable[[_Opened], object]) -> None:
        """Exit the innermost entry of the block.

        Args:
            leave: exits the section; must be idempotent.
        """
        try:
            opened = self._opened
            if opened is not None:
                self._notify_end()
                leave(opened)
                self._restore(opened)
        except BaseException:
            try:
                left = opened
            except UnboundLocalError:  # interrupted before the first instruction
                left = self._opened
            if left is not None:
                try_again(self._leave_rest, left, leave)
            raise

    def _leave_rest(self, opened: _Opened, leave: Callable[[_Opened], object]) -> None:
        leave(opened)
        self._restore(opened)

    def _undo_start(self, opened: _Opened, problem: BaseException) -> None:
        """Undo the start of a block whose ``__enter__`` failed: ``__exit__`` will not be called."""
        opened.section.__exit__(type(problem), problem, problem.__traceback__)
        self._restore(opened)

    def _restore(self, opened: _Opened) -> None:
        """Remove the section from the outer ones, and restore the previous phase or epoch."""
        if opened.section in opened.recorder.parents.outer:
            opened.recorder.parents.outer.remove(opened.section)
        self._set_current(opened.recorder, opened.before)
        if self._opened is opened:
            self._opened = opened.around

    def set(self, **attributes: Any) -> None:
        """Do nothing: the value of the ``with`` statement, the open section, accepts attributes."""

    def _begin(self, recorder: Recorder) -> Section:
        raise NotImplementedError

    def _set_current(self, recorder: Recorder, value: Any) -> None:
        raise NotImplementedError

    def _notify_end(self) -> None:
        """Notify listeners before the block ends."""


class Epoch(_Frame):
    """Context manager of one epoch: ``with epoch(3):``."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def _begin(self, recorder: Recorder) -> Section:
        recorder.stepping.abandoned.settle(None)
        key = (names.SPAN_EPOCH, names.EPOCH)
        section = recorder.sections.make(recorder.registry.entry(key, *key))
        extra_of(section).attributes = {names.TRAINING_EPOCH: int(self._number)}
        opened = _Opened(recorder, section, recorder.stepping.epoch, self._opened)
        try:
            section.__enter__()
            self._opened = opened
            recorder.marks.begin_epoch()
            self._set_current(recorder, int(self._number))
            recorder.parents.outer.append(section)
        except BaseException as problem:
            try_again(self._undo_start, opened, problem)
            raise
        return section

    def _set_current(self, recorder: Recorder, value: Any) -> None:
        recorder.stepping.epoch = value

    def _notify_end(self) -> None:
        if self._opened is not None:
            _note_peaks(self._opened)

    @at_once
    def drop(self, *, is_suspicious: bool) -> None:
        """End an epoch whose loop's iterator was released, by ``break`` or an exception.

        Args:
            is_suspicious: whether an exception may be propagating; the epoch is then pending.
        """
        try:
            opened = self._opened
            if opened is None or not opened.section.at:
                return
            _note_peaks(opened)
            # First, because the next epoch must not be inside this one, whose row may be written
            # later.
            self._restore(opened)
            abandoned, end = opened.recorder.stepping.abandoned, _ending(opened)
            abandoned.add(opened.section, end, is_suspicious=is_suspicious)
        except BaseException as error:  # noqa: BLE001 - foreign exceptions propagate
            try:
                left = opened
            except UnboundLocalError:  # interrupted before the first instruction
                left = self._opened
            if left is not None:
                try_again(
                    self._leave_rest, left, lambda opened: opened.section.__exit__(None, None, None)
                )
            internal_error(error)


def _note_peaks(opened: _Opened) -> None:
    """Add memory peaks to the attributes of an ending epoch.

    They are read here, because the agent's next reading may be seconds later.
    """
    section = opened.section
    if not section.at:
        return
    for peaks in opened.recorder.stepping.peaks:
        extra_of(section).attributes = {**(extra_of(section).attributes or {}), **peaks()}


def _ending(opened: _Opened) -> End:
    recorder, section = opened.recorder, opened.section

    def end(t1: int, error: list[str] | None) -> None:
        recorder.stepping.end_inside(section, t1, error)
        recorder.sections.leave(section)
        recorder.sections.close(section, t1, error)

    return end


def epoch(number: int) -> Block:
    """Record a block as epoch ``number``, for loops to which ``epochs`` cannot be applied."""
    return Invisible() if is_compiling() else Epoch(number)


class Epochs(Generic[T]):
    """Iterable whose iterations are recorded as epochs; see ``epochs()``."""

    def __init__(self, of: Iterable[T], start: int) -> None:
        self._of, self._start = of, start

    def __len__(self) -> int:
        return len(self._of)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        return EpochIterator(iter(self._of), self._start)


class EpochIterator(Generic[T]):
    """Iterator that ends an epoch when the next one is requested or the loop is left."""

    def __init__(self, inner: Iterator[T], number: int) -> None:
        self._inner, self._number = inner, number
        self._open: Epoch | None = None

    def __iter__(self) -> EpochIterator[T]:
        return self

    def __next__(self) -> T:
        self.close()
        value = next(self._inner)
        epoch = Epoch(self._number)
        self._number += 1
        epoch.__enter__()
        self._open = epoch
        _store_remaining_epochs(self._inner)
        return value

    def close(self) -> None:
        """End the open epoch."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None

    @at_once
    def drop(self) -> None:
        """End the epoch of an iterator that is no longer referenced."""
        try:
            # The attribute is missing if the constructor was interrupted.
            opened = getattr(self, "_open", None)
            if opened is not None:
                opened.drop(is_suspicious=is_suspicious(3))
        except BaseException:
            # Repeat it, because the interrupt may have preceded it; it is idempotent.
            try_again(self._drop_calmly)
            raise

    def _drop_calmly(self) -> None:
        opened = getattr(self, "_open", None)
        if opened is not None:
            opened.drop(is_suspicious=False)

    # Raise exceptions of signal handlers afterwards: in a finalizer, the interpreter drops them.
    __del__ = raises_afterwards(drop)


def _store_remaining_epochs(inner: Iterator[Any]) -> None:
    """Store the number of remaining epochs, including the open one, to derive planned steps."""
    try:
        recorder, remaining = active(), find_left(inner)
        if recorder is not None and remaining is not None:
            recorder.stepping.epochs_left = remaining + 1
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)


@overload
def epochs(of: int, *, start: int = 0) -> Epochs[int]: ...
@overload
def epochs(of: Iterable[T], *, start: int = 0) -> Epochs[T]: ...
def epochs(of: Any, *, start: int = 0) -> Epochs[Any]:
    """Record the iterations of a loop as epochs.

    Args:
        of: the total number of epochs, or an iterable with an item for each epoch.
        start: number of the first epoch: ``epochs(10, start=4)`` yields 4 to 9.
    """
    return Epochs(range(start, of) if isinstance(of, int) else of, start)


class Phase(_Frame):
    """Context manager of a phase, inside which steps are numbered separately."""

    def __init__(self, name: str) -> None:
        self._name = names.PHASE_OF.get(name, name) if isinstance(name, str) else name
        super().__init__()

    def _begin(self, recorder: Recorder) -> Section:
        recorder.stepping.abandoned.settle(None)
        recorder.stepping.end_whole()
        phase = self._name if self._name in names.PHASES else recorder.registry.phase
        if phase != self._name:
            import difflib

            close = difflib.get_close_matches(str(self._name), names.PHASES, 1)
            hint = f": did you mean {close[0]!r}?" if close else f"; its steps count as {phase}"
            warn_once(f"phase({self._name!r}): expected one of {', '.join(names.PHASES)}{hint}")
        before = recorder.registry.phase
        opened = None
        try:
            self._set_current(recorder, phase)
            key = (str(self._name), names.PHASE)
            section = recorder.sections.make(recorder.registry.entry(key, *key))
            opened = _Opened(recorder, section, before, self._opened)
            section.__enter__()
            self._opened = opened
            recorder.parents.outer.append(section)
            PHASE.tell(phase, True)
        except BaseException as problem:
            if opened is None:
                try_again(self._set_current, recorder, before)
            else:
                try_again(self._undo_start, opened, problem)
            raise
        return section

    def _set_current(self, recorder: Recorder, value: Any) -> None:
        recorder.registry.set_phase(value)
        recording.refresh()  # span() caches the names of one phase in a global

    def _notify_end(self) -> None:
        assert self._opened is not None
        PHASE.tell(self._opened.recorder.registry.phase, False)

    def end(self, at_ns: int) -> None:
        """End an inferred phase at an earlier time."""
        self._leave(lambda opened: opened.recorder.sections.exit_slow(
            opened.section, max(at_ns, opened.section.t0), None
        ))  # fmt: skip

    def cancel(self) -> None:
        """Cancel an inferred phase that was none; its sections belong to the enclosing section."""

        def undo_start(opened: _Opened) -> None:
            opened.recorder.sections.leave(opened.section)
            opened.recorder.stepping.cancel_section(opened.section)

        self._leave(undo_start)


def phase(name: str) -> Block:
    """Record a block as a phase of the run: train, validate, test or predict.

    Common synonyms (``eval``, ``val``, ``inference``, …) are accepted. Each phase counts its own
    steps. A phase inside an open step belongs to the run's trace, and the step's duration excludes
    it.
    """
    return Invisible() if is_compiling() else Phase(name)
