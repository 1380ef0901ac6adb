"""What do ``epochs``, ``epoch`` and ``phase`` add to the run's trace?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from otel_mlperf import names
from otel_mlperf.recorder.api.block import Invisible
from otel_mlperf.recorder.api.span import active, is_compiling
from otel_mlperf.recorder.core import recording
from otel_mlperf.recorder.core.faults import internal_error, say_once
from otel_mlperf.recorder.core.program_callbacks import PHASE
from otel_mlperf.recorder.sections.section_context import extra_of
from otel_mlperf.recorder.stepping.abandoned_loops import is_suspicious

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from otel_mlperf.recorder.api.block import Block
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.section import Section
    from otel_mlperf.recorder.stepping.abandoned_loops import End

T = TypeVar("T")


class _Frame:
    """What is the same for every block that is not a step: nothing that it does may raise."""

    def __enter__(self) -> Any:
        try:
            recorder = active()
            if recorder is None or is_compiling():
                return Invisible()
            return self._begin(recorder)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return Invisible()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end(kind, error, trace)
        except Exception as problem:  # noqa: BLE001 - recording never raises
            internal_error(problem)

    def set(self, **attributes: Any) -> None:
        """Nothing is recorded: what ``with`` gives is the open section."""

    def _begin(self, recorder: Recorder) -> Section:
        raise NotImplementedError

    def _end(self, *exception: Any) -> None:
        raise NotImplementedError


class Epoch(_Frame):
    """One epoch as a block: ``with epoch(3):``."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._recorder: Recorder | None = None
        self._section: Any = None
        self._before: int | None = None

    def _begin(self, recorder: Recorder) -> Section:
        recorder.stepping.abandoned.settle(None)
        key = (names.SPAN_EPOCH, names.EPOCH)
        section = recorder.sections.make(recorder.registry.entry(key, *key))
        extra_of(section).attributes = {names.TRAINING_EPOCH: int(self._number)}
        section.__enter__()
        self._before, recorder.stepping.epoch = recorder.stepping.epoch, int(self._number)
        self._recorder, self._section = recorder, section
        recorder.parents.outer.append(section)
        return section

    def _end(self, *exception: Any) -> None:
        if self._recorder is not None:
            self._section.__exit__(*exception)
            self.leave()

    def leave(self) -> None:
        """The epoch is not the current one any more."""
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stepping.epoch = self._before
            _remove(recorder, self._section)

    def drop(self) -> None:
        """The loop's iterator is gone: by ``break``, or perhaps by an exception."""
        recorder, section = self._recorder, self._section
        if recorder is None or not section.at:
            return
        try:
            # First, for the next epoch must not find this one around it; its row may wait longer.
            self.leave()
            abandoned = recorder.stepping.abandoned
            abandoned.add(section, _ending(recorder, section), is_suspicious=is_suspicious(3))
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)


def _ending(recorder: Recorder, section: Section) -> End:
    def end(t1: int, error: list[str] | None) -> None:
        recorder.stepping.end_inside(section, t1, error)
        recorder.sections.leave(section)
        recorder.sections.close(section, t1, error)

    return end


def epoch(number: int) -> Block:
    """Epoch ``number`` as a block, for loops that ``epochs`` does not fit."""
    return Invisible() if is_compiling() else Epoch(number)


class Epochs(Generic[T]):
    """An iterable each turn of which is an epoch; see ``epochs()``."""

    def __init__(self, of: Iterable[T], start: int) -> None:
        self._of, self._start = of, start

    def __len__(self) -> int:
        return len(self._of)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        return EpochIterator(iter(self._of), self._start)


class EpochIterator(Generic[T]):
    """One pass: an epoch ends when the next is asked for, or the loop is left."""

    def __init__(self, inner: Iterator[T], number: int) -> None:
        self._inner, self._number = inner, number
        self._open: Epoch | None = None

    def __iter__(self) -> EpochIterator[T]:
        return self

    def __next__(self) -> T:
        self.close()
        value = next(self._inner)
        self._open = Epoch(self._number)
        self._number += 1
        self._open.__enter__()
        return value

    def close(self) -> None:
        """Ends the open epoch."""
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def __del__(self) -> None:
        if self._open is not None:
            self._open.drop()


@overload
def epochs(of: int, *, start: int = 0) -> Epochs[int]: ...
@overload
def epochs(of: Iterable[T], *, start: int = 0) -> Epochs[T]: ...
def epochs(of: Any, *, start: int = 0) -> Epochs[Any]:
    """Makes the turns of a loop epochs.

    Args:
        of: how many epochs there are in all, or an iterable with one item for each.
        start: number of the first: ``epochs(10, start=4)`` gives 4 to 9.
    """
    return Epochs(range(start, of) if isinstance(of, int) else of, start)


class Phase(_Frame):
    """A phase as a block; steps inside it count for themselves."""

    def __init__(self, name: str) -> None:
        self._name = names.PHASE_OF.get(name, name) if isinstance(name, str) else name
        self._opened: list[tuple[Recorder, str, str, Any]] = []

    def _begin(self, recorder: Recorder) -> Section:
        recorder.stepping.abandoned.settle(None)
        phase = self._name if self._name in names.PHASES else recorder.registry.phase
        if phase != self._name:
            import difflib

            close = difflib.get_close_matches(str(self._name), names.PHASES, 1)
            hint = f": did you mean {close[0]!r}?" if close else f"; its steps count as {phase}"
            say_once(f"phase({self._name!r}) is none of {', '.join(names.PHASES)}{hint}")
        before = recorder.registry.set_phase(phase)
        recording.refresh()  # span() keeps the known names of one phase in a global of its own
        key = (str(self._name), names.PHASE)
        section = recorder.sections.make(recorder.registry.entry(key, *key))
        section.__enter__()
        recorder.parents.outer.append(section)
        self._opened = [*self._opened, (recorder, phase, before, section)]
        try:
            PHASE.tell(phase, True)
        except BaseException:  # Ctrl-C: the block is never entered, so nobody would leave it
            self._close(lambda _, section: section.__exit__(*sys.exc_info()))
            raise
        return section

    def end(self, at_ns: int) -> None:
        """Ends it at a time that has passed: nobody has said that it is one, nor when it ended."""
        self._leave(lambda recorder, section: recorder.sections.exit_slow(
            section, max(at_ns, section.t0), None
        ))  # fmt: skip

    def cancel(self) -> None:
        """Takes it back: it was none, and what was in it goes to what is around it."""

        def take_back(recorder: Recorder, section: Any) -> None:
            recorder.sections.leave(section)
            recorder.stepping.cancel_section(section)

        self._leave(take_back)

    def _end(self, *exception: Any) -> None:
        self._leave(lambda _, section: section.__exit__(*exception))

    def _leave(self, leave: Callable[[Recorder, Any], None]) -> None:
        if not self._opened:
            return
        try:
            PHASE.tell(self._opened[-1][1], False)
        finally:
            self._close(leave)

    def _close(self, leave: Callable[[Recorder, Any], None]) -> None:
        recorder, _, before, section = self._opened.pop()
        leave(recorder, section)
        _remove(recorder, section)
        recorder.registry.set_phase(before)
        recording.refresh()


def phase(name: str) -> Block:
    """A block that is a phase of the run: train, validate, test or predict.

    Common words for one of them (``eval``, ``val``, ``inference``, …) mean it.

    Its steps count for themselves. Inside an open step it belongs to the run's trace, and the
    step's measured duration leaves it out.
    """
    return Invisible() if is_compiling() else Phase(name)


def _remove(recorder: Recorder, section: Any) -> None:
    if section in recorder.parents.outer:
        recorder.parents.outer.remove(section)
