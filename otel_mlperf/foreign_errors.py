"""Detection of exceptions that our code caught but that belong to the program.

A signal handler of the program raised it while our code ran (a time limit, say), or another thread
injected it. Only the place where it was raised distinguishes it from failures of our code, or of
what our code calls on purpose.
"""

from __future__ import annotations

import opcode
import signal
from collections import deque
from types import FrameType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType

_RAISING = tuple(opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))
# Exceptions that the interpreter and its modules raise without a message.
_WORDLESS = (MemoryError, StopIteration, StopAsyncIteration, EOFError)
_QUEUE_EMPTY = ("_queue", "queue")
# Not the exceptions themselves: they reference frames, and with them objects that the program wants
# to release.
_arguments_raised_again: deque[tuple[Any, ...]] = deque(maxlen=8)


def note_raised_again(error: BaseException) -> None:
    """Record that an exception of the program is raised again, without a traceback from then on."""
    if error.args:  # all empty tuples are one object
        _arguments_raised_again.append(error.args)


def is_foreign(error: BaseException) -> bool:
    """Return whether an exception belongs to the program and must propagate.

    An exception that is no ``Exception`` always does: Ctrl-C, an exit. Otherwise a signal handler
    is in its traceback, or it was raised where no code raises anything.
    """
    if not isinstance(error, Exception):
        return True
    if any(error.args is arguments for arguments in _arguments_raised_again):
        return True
    trace, handlers = error.__traceback__, None
    if trace is None:
        return False
    while trace is not None:
        frame = trace.tb_frame
        if not frame.f_globals.get("__name__", "").startswith("otel_mlperf."):
            handlers = _codes_of_handlers() if handlers is None else handlers
            if frame.f_code in handlers or _is_given_frame(frame):
                return True
        last, trace = trace, trace.tb_next
    return _is_injected(error, last)


def raise_foreign(error: BaseException) -> None:
    """Raise an exception of the program again, in code that degrades instead of failing.

    Raises:
        BaseException: ``error`` itself, if it is the program's.
    """
    if is_foreign(error):
        raise error


def _is_given_frame(frame: FrameType) -> bool:
    """Return whether a function was called with a frame, as signal handlers are."""
    code, values = frame.f_code, frame.f_locals
    named = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[: named + bool(code.co_flags & 0x04)]
    given = [values.get(name) for name in names]
    if code.co_flags & 0x04 and isinstance(given[-1], tuple):  # *arguments
        given += given[-1]
    return any(isinstance(value, FrameType) for value in given)


def _codes_of_handlers() -> set[CodeType]:
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if callable(handler):
            handler = getattr(handler, "func", handler)  # functools.partial
            call = handler if hasattr(handler, "__code__") else type(handler).__call__
            code = getattr(call, "__code__", None)
            if code is not None:
                found.add(code)
    return found


def _is_injected(error: Exception, last: TracebackType) -> bool:
    """Return whether the interpreter raised it itself, for another thread, given only a class."""
    if last.tb_frame.f_code.co_code[last.tb_lasti] in _RAISING or isinstance(error, _WORDLESS):
        return False
    kind = type(error)
    if kind.__module__ in _QUEUE_EMPTY:
        return False
    # Exceptions raised in C have a message and a class of C. Other classes build their own message.
    return not error.args or any(
        isinstance(vars(base).get(name), FunctionType | staticmethod)
        for base in kind.__mro__
        for name in ("__init__", "__new__")
    )
