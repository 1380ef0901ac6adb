"""Exceptions that signals and other threads raise inside the recorder: deferral to the program.

Python runs signal handlers, and raises what other threads inject (``PyThreadState_SetAsyncExc``),
between two instructions: after a call, at a backward jump, and before the first instruction of a
function, where no ``try`` of the function can be. Code that undoes or ends something must not be
stopped there. Code that the interpreter itself calls (finalizers, callbacks of weak references and
of the garbage collector) must not raise at all: the exception would be printed and dropped.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_mlperf.foreign_errors import note_raised_again
from otel_mlperf.recorder.core.thread_ident import get_ident

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType

F = TypeVar("F", bound="Callable[..., Any]")
_NOT_READ: Final = (3, 15)
"""Since this version the format of the exception table is unknown: functions stay unchanged."""


def at_once(function: F) -> F:
    """Return the function with its first ``try`` extended to its entry, so that it catches all.

    It is for code that must complete: ``__exit__`` is called once, and an exception in front of its
    ``try`` would leave open what it should have ended. The handlers may find that only the
    arguments have been assigned yet.
    """
    plain: FunctionType = function  # type: ignore[assignment]
    table = plain.__code__.co_exceptiontable
    if table and sys.version_info < _NOT_READ:
        # The first entry is the first ``try``: its start and its length.
        start, at = _number(table, 0)
        length, rest = _number(table, at)
        longer = _ENTRY, *_digits(start + length)
        plain.__code__ = plain.__code__.replace(co_exceptiontable=bytes(longer) + table[rest:])
    return function


# The format is that of Objects/exception_handling_notes.txt of CPython: six bits in a byte.
_ENTRY, _MORE, _BITS = 0x80, 0x40, 0x3F


def _number(table: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset behind it."""
    value = table[at] & _BITS
    while table[at] & _MORE:
        at += 1
        value = value << 6 | table[at] & _BITS
    return value, at + 1


def _digits(value: int) -> list[int]:
    digits = [value & _BITS]
    while value := value >> 6:
        digits.insert(0, _MORE | value & _BITS)
    return digits


_held: dict[int, BaseException] = {}
"""Exceptions that are to be raised again, by thread."""
_held_at_start: dict[int, BaseException] = {}
"""Exceptions that arrived as a garbage collection started: to be raised when it ends."""
_START: Final = ("start",)
_STOP: Final = ("stop",)
# Returns the caller's thread without a call by the interpreter, which would check signals after it.
_here: Final = iter(get_ident, None)


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


def raises_afterwards(function: Callable[..., object]) -> Callable[..., None]:
    """Wrap a function that the interpreter may call: its exceptions are raised again afterwards.

    The same exception is raised in the same thread, in the code that the call interrupted. Of the
    two calls that ``gc.callbacks`` get for a collection, it is raised after the second: what the
    collection itself calls in between would drop it, too.
    """

    @functools.wraps(function)
    @at_once
    def call(*args: Any) -> None:
        try:
            is_begun = True
            function(*args)
            if _held_at_start and args[:1] == _STOP:
                _raise_held()
        except BaseException as error:  # noqa: BLE001 - raised again by the interpreter
            held = error
            try:
                try:
                    del is_begun
                except UnboundLocalError:  # at the first instruction; determined without a call
                    function(*args)
            except BaseException as another:  # noqa: BLE001 - it represents both
                held = another
            # No call and no backward jump from here on: the interpreter would check for signals
            # again.
            for thread in _here:  # noqa: B007 - needed below
                break
            if args[:1] == _START:
                _held_at_start[thread] = held
                return
            _held[thread] = held
            _threads[thread] = _HeldError

    return call


def _raise_held() -> None:
    """Raise the exception that arrived as the caller's collection started, if there is one."""
    held = _held_at_start.pop(get_ident(), None)
    if held is not None:
        raise held
