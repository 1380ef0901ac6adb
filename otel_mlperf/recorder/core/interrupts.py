"""Deferral of exceptions that signal handlers and other threads raise inside the recorder.

Python runs signal handlers, and raises exceptions that other threads inject
(``PyThreadState_SetAsyncExc``), between two instructions: after a call, at a backward jump, and
before the first instruction of a function, which no ``try`` of the function covers. Such an
exception must not abort code that ends or undoes something. Code that the interpreter calls
(finalizers, callbacks of weak references and of the garbage collector) must not raise at all: the
interpreter would print and drop the exception.
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
"""First Python version whose exception table has an unknown format: there, functions stay
unchanged.
"""


def at_once(function: F) -> F:
    """Extend the function's first ``try`` to the function's entry, and return the function.

    For code that must complete: ``__exit__`` is called once, and an exception before its ``try``
    would leave a section open. The exception handlers must expect that only the arguments have been
    assigned.
    """
    plain: FunctionType = function  # type: ignore[assignment]
    table = plain.__code__.co_exceptiontable
    if table and sys.version_info < _NOT_READ:
        # The table's first entry belongs to the first ``try`` and begins with its start and length.
        start, at = _number(table, 0)
        length, rest = _number(table, at)
        longer = _ENTRY, *_digits(start + length)
        plain.__code__ = plain.__code__.replace(co_exceptiontable=bytes(longer) + table[rest:])
    return function


# Numbers are encoded with six bits in a byte: Objects/exception_handling_notes.txt of CPython.
_ENTRY, _MORE, _BITS = 0x80, 0x40, 0x3F


def _number(table: bytes, at: int) -> tuple[int, int]:
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


_deferred: dict[int, BaseException] = {}
"""Exceptions to raise again in a thread, by the thread's ident."""
_deferred_at_start: dict[int, BaseException] = {}
"""Exceptions that arrived at the start of a garbage collection, to raise at its end, by ident."""
_START: Final = ("start",)
_STOP: Final = ("stop",)
# Yields the caller's ident. Iteration is not a call, after which the interpreter would check for
# signals.
_current_ident: Final = iter(get_ident, None)


class _DeferredError(BaseException):
    """Class to raise in a thread: creating an instance returns the thread's deferred exception."""

    def __new__(cls, *made: Any) -> Any:
        if made:  # a second call, while another exception is being handled
            return made[0]
        thread = get_ident()
        error = _deferred[thread]
        del _deferred[thread]
        note_raised_again(error)  # CPython 3.11 removes its traceback
        return error


class _Threads:
    """Mapping in which ``threads[ident] = class`` raises ``class`` in a thread.

    The exception is raised at the thread's next instruction that checks for signals.
    """

    raise_in = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
    raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
    # An assignment, not a call: after a call the interpreter would raise immediately, inside the
    # code that must not raise.
    __setitem__ = raise_in


_threads: Final[Any] = _Threads()


def raises_afterwards(function: Callable[..., object]) -> Callable[..., None]:
    """Wrap a function that the interpreter calls, so that its exceptions are raised afterwards.

    The same exception is raised in the same thread, in the code that the call interrupted. A
    ``gc.callbacks`` function is called at the start and the end of a collection. Exceptions of
    both calls are raised at the end: code that the collection runs in between would drop them.
    """

    @functools.wraps(function)
    @at_once
    def call(*args: Any) -> None:
        try:
            has_started = True
            function(*args)
            if _deferred_at_start and args[:1] == _STOP:
                _raise_deferred()
        except BaseException as error:  # noqa: BLE001 - raised again by the interpreter
            deferred = error
            try:
                try:
                    del has_started
                except UnboundLocalError:  # interrupted before the first instruction
                    function(*args)
            except BaseException as another:  # noqa: BLE001 - it represents both
                deferred = another
            # No call and no backward jump below: the interpreter would check for signals there, and
            # drop the exception.
            for thread in _current_ident:  # noqa: B007 - needed below
                break
            if args[:1] == _START:
                _deferred_at_start[thread] = deferred
                return
            _deferred[thread] = deferred
            _threads[thread] = _DeferredError

    return call


def _raise_deferred() -> None:
    deferred = _deferred_at_start.pop(get_ident(), None)
    if deferred is not None:
        raise deferred
