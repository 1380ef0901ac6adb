"""Deferral of interrupts that arrive in code that the interpreter itself calls.

Python runs signal handlers between two instructions, and prints and drops what they raise in
finalizers, in callbacks of weak references and of the garbage collector, and in a forked child's
first functions. A Ctrl-C in such code of the recorder is caught here instead, and raised again in
the code that the call interrupted.

Such code runs in a generator that is suspended inside a ``try``. A function would not do: the
interpreter checks for signals at its first instruction, where no ``try`` of the function can be.
A callback that needs no code of ours is a function of C instead, like ``partial(known.pop, key)``.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.foreign_errors import note_raised_again
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.thread_ident import get_ident

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_held: dict[int, BaseException] = {}
"""Exceptions that are to be raised again, by thread."""


class _HeldError(BaseException):
    """Class that is raised in a thread by its ident; its instance is the exception held there."""

    def __new__(cls, *made: Any) -> Any:
        if made:  # the interpreter calls again where another exception is being handled
            return made[0]
        thread = get_ident()
        error = _held[thread]
        del _held[thread]
        note_raised_again(error)  # CPython 3.11 takes its traceback away
        return error


class _Threads:
    """``threads[ident] = class`` raises in a thread, at the next instruction that checks."""

    raise_in = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
    raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
    # An assignment, because after a call the interpreter would raise immediately: too early.
    __setitem__ = raise_in


_threads: Final[Any] = _Threads()


def raise_afterwards(error: BaseException) -> None:
    """Raise an exception in this thread's next instruction that checks, if it is the program's.

    The caller returns to the interpreter without a call or a jump back: it would raise there.
    """
    try:
        internal_error(error)
    except BaseException as foreign:  # noqa: BLE001 - raised again by the interpreter
        thread = get_ident()
        _held[thread] = foreign
        _threads[thread] = _HeldError


def at_release(function: Callable[..., object], *arguments: Any) -> object:
    """Return an object that calls a function when it is released.

    Args:
        function: idempotent: it is called again if it is interrupted. It must not refer to the
            object that refers to the returned one.
        arguments: the arguments of the call.
    """
    waiting = _call_at_release(function, arguments)
    next(waiting)
    return waiting


def _call_at_release(function: Callable[..., object], arguments: Any) -> Generator[None]:
    try:
        # Left before the call: otherwise it would be the context of what that raises.
        try:  # noqa: SIM105 - `suppress` would run a function outside of the `try`
            yield
        except GeneratorExit:
            pass
        try:
            function(*arguments)
        except BaseException:
            function(*arguments)
            raise
    except BaseException as error:  # noqa: BLE001 - decided there
        raise_afterwards(error)


def when_gone(function: Callable[[], object]) -> Callable[[object], object]:
    """Return the callback of one weak reference: calls a function, without the reference.

    Args:
        function: idempotent: it is called again if it is interrupted.
    """
    waiting = _call_when_gone(function)
    next(waiting)
    return waiting.send


def _call_when_gone(function: Callable[[], object]) -> Generator[None, object]:
    try:
        try:
            yield
            function()
        except GeneratorExit:
            return  # never called
        except BaseException:
            function()
            raise
    except BaseException as error:  # noqa: BLE001 - decided there
        raise_afterwards(error)
    yield  # the interpreter would print that a generator has ended


def in_collections(
    function: Callable[[str, dict[str, int]], None],
) -> tuple[Callable[..., object], Callable[[], None]]:
    """Return a callback for ``gc.callbacks`` that calls a function, and what ends it.

    An interrupt is raised when the collection has ended. Raised earlier it would arrive in a
    finalizer that the collection calls, and be dropped. What was interrupted is not called again.
    """
    waiting = _call_in_collections(function)
    next(waiting)
    # Made and passed to the generator by functions of C. The collector does not examine it.
    call = msgspec.defstruct(
        "Call", ["phase", "info"], namespace={"__post_init__": waiting.send}, gc=False
    )
    return call, waiting.close


def _call_in_collections(function: Callable[[str, dict[str, int]], None]) -> Generator[None, Any]:
    held: BaseException | None = None
    call: Any = None
    phase = "stop"
    while True:
        try:
            while True:
                if call is None:
                    phase = "start" if phase == "stop" else "stop"  # until it is known
                    call = yield
                phase, info, call = call.phase, call.info, None
                function(phase, info)
                if held is not None and phase == "stop":
                    raise held
        except GeneratorExit:
            return
        except BaseException as error:  # noqa: BLE001 - decided below
            if phase == "start":
                held = error
            else:
                held = None
                raise_afterwards(error)
        # The exception would be raised at the jump back.
        call = yield
