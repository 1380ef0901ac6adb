"""The public calls ``step``, ``mark_step`` and ``log``, for reported steps and their values."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from otel_mlperf import names
from otel_mlperf.recorder.api.block import Invisible
from otel_mlperf.recorder.api.span import active, is_compiling, note_unrecorded
from otel_mlperf.recorder.core.faults import internal_error, try_again, warn_once
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.scrub import is_failure
from otel_mlperf.recorder.sections.slow_path import EXPECTED

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from otel_mlperf.recorder.api.block import Decorator
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.sections.parents import OpenStep
    from otel_mlperf.recorder.sections.section_context import SectionContext

F = TypeVar("F", bound="Callable[..., Any]")
_NESTED = (
    "a step was opened inside a step of the same phase: only the outer step counts, the inner "
    "step is recorded as a plain section"
)
_UNENTERED = (
    "step() was called, but never entered: write 'with step():', or call mark_step() if there is "
    "no block"
)


_SINGLE_REFERENCE = 2
"""Reference count of an object with one variable, including the argument of ``sys.getrefcount``."""
_made: StepBlock | None = None
"""The last block that ``step()`` created; None after any block was entered."""
_Opened = tuple["Recorder", "OpenStep | None", Any, "_Opened | None"]
"""Stack of the open entries of a block, which may be re-entered: recorder, step (None: a section),
section, and the enclosing entry.
"""


class StepBlock:
    """Context manager and decorator of one step: ``with step():``."""

    def __init__(
        self,
        number: int | None = None,
        samples: int | None = None,
        tokens: int | None = None,
        name: str = names.STEP,
    ) -> None:
        self._number, self._samples, self._tokens = number, samples, tokens
        self._name = name
        """Name of the section that is recorded instead inside a step of the same phase."""
        self._opened: _Opened | None = None

    def __enter__(self) -> Any:
        global _made
        _made = None
        step: OpenStep | None = None
        recorder = active()
        try:
            if recorder is None or is_compiling():
                note_unrecorded("step()")
                return Invisible()
            step = recorder.stepping.begin(self._number)
            if step is None:
                warn_once(_NESTED)
                section: SectionContext = recorder.sections.enter(self._name, names.OTHER)
            else:
                section = step.section
                step.samples, step.tokens = self._samples, self._tokens
            self._opened = recorder, step, section, self._opened
        except BaseException as error:  # noqa: BLE001 - foreign exceptions propagate
            if recorder is not None and step is not None:
                try_again(recorder.stepping.cancel, step)
            internal_error(error)
            return Invisible()
        return section

    @at_once
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            t1 = time.monotonic_ns()  # first: the step must not include the cost of ending it
            self._leave(t1, error)
        except BaseException as problem:  # noqa: BLE001 - foreign exceptions propagate
            opened = self._opened
            try:
                try_again(self._leave, 0, error)
                internal_error(problem)
            except RecursionError as deeper:  # see ``BoundSection.__exit__``
                if deeper is problem or problem.__class__ not in EXPECTED:
                    raise problem from None
            if problem.__class__ is RecursionError and self._opened is opened is not None:
                sections = opened[0].sections
                sections.unfinished = self._leave_late, (opened, kind), sections.unfinished

    def _leave_late(self, now: int, opened: _Opened, kind: type[BaseException] | None) -> None:
        """Complete an end that was deferred at the recursion limit."""
        recorder, step, section, before = opened
        if self._opened is opened:
            self._opened = before
        described = None if kind is None else [kind.__name__, "", ""]
        if step is None:
            recorder.sections.finish_late(now, section, section.at, now, 0, kind)
        else:
            recorder.stepping.end_rest(step, now, described)

    def _leave(self, t1: int, error: BaseException | None) -> None:
        """End the innermost entry; idempotent."""
        if self._opened is None:
            return
        recorder, step, section, before = self._opened
        if step is None:
            section.__exit__(type(error) if error else None, error, None)
        else:
            failed = error is not None and step.section.at and is_failure(error)
            described = recorder.sections.describe(section, error) if failed else None
            recorder.stepping.end(step, t1, described)
        self._opened = before

    def set(self, **attributes: Any) -> None:
        """Do nothing: the value of the ``with`` statement, the open step, accepts attributes."""

    def __call__(self, function: F) -> F:
        """Decorate a function: each call is a step."""
        decorated: F = _decorate(function, self._number, self._samples, self._tokens)
        return decorated


@overload
def step(number: F, /) -> F: ...
@overload
def step(
    number: int | None = None, /, *, samples: int | None = None, tokens: int | None = None
) -> Decorator: ...
def step(number: Any = None, /, *, samples: int | None = None, tokens: int | None = None) -> Any:
    """Record a block or a function as one step of the current phase.

    Args:
        number: step number of the program (default: the next number).
        samples: number of samples in the step.
        tokens: number of tokens in the step.
    """
    if callable(number):
        return _decorate(number, None, samples, tokens)
    if is_compiling():
        return Invisible()
    global _made
    # Checked here and not in a finalizer, in which the interpreter would drop an exception that a
    # signal handler raises.
    if _made is not None and sys.getrefcount(_made) == _SINGLE_REFERENCE:
        warn_once(_UNENTERED)
    _made = StepBlock(number, samples, tokens)
    return _made


def mark_step(number: int | None = None) -> None:
    """End the open step and start the next one, for code to which no block can be added.

    The first call only starts a step. A step that is still open when its enclosing section ends is
    cancelled.

    Args:
        number: number of the started step (default: the next number).
    """
    try:
        recorder = None if is_compiling() else active()
        if recorder is not None and not recorder.stepping.mark(number):
            warn_once("mark_step() inside a step of the same phase does nothing")
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)


def log(*more: Mapping[str, Any], **values: Any) -> None:
    """Record values of the current step: ``log(loss=loss, lr=lr)``, or ``log({"loss": loss})``.

    ``loss``, ``lr`` and ``grad_norm`` become metrics ``ml.training.*``, other names
    ``ml.user.<name>``. The call does not wait for tensors on a GPU, which are copied asynchronously
    and recorded later.
    """
    try:
        recorder = None if is_compiling() else active()
        if recorder is not None:
            recorder.values.log(_joined(values, more))
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)


def _joined(values: dict[str, Any], more: tuple[Any, ...]) -> dict[str, Any]:
    for given in more:
        if isinstance(given, Mapping):
            values = {**given, **values}
        else:
            # Show the type only: printing a tensor would wait for the GPU.
            warn_once(
                f"log(): found a {type(given).__name__}, expected keyword arguments, e.g. loss=0.1"
            )
    return values


def _decorate(function: Any, number: Any, samples: Any, tokens: Any) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_decorate(function.__func__, number, samples, tokens))
    name = getattr(function, "__qualname__", names.STEP).rpartition("<locals>.")[2]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            with StepBlock(number, samples, tokens, name):
                return await function(*args, **kwargs)

        return wait

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        with StepBlock(number, samples, tokens, name):
            return function(*args, **kwargs)

    return call
