"""Detection of exceptions that this package caught but that belong to the user's own program.

Such an exception was raised by a signal handler of the user's program while code of this package
ran (e.g. for a time limit), or was injected by another thread. Only the place where it was raised
distinguishes it from failures of this package and of the functions that this package calls.
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
# Exceptions that the interpreter and its C modules raise without a message.
_WORDLESS = (MemoryError, StopIteration, StopAsyncIteration, EOFError)
_QUEUE_EMPTY = ("_queue", "queue")
# The arguments, not the exceptions: these reference frames, and thereby objects that the program
# wants to release.
_arguments_raised_again: deque[tuple[Any, ...]] = deque(maxlen=8)


def note_raised_again(error: BaseException) -> None:
    """Record that an exception of the user's program is raised again without its traceback.

    ``is_foreign`` recognizes it by the identity of its ``args``.
    """
    if error.args:  # all empty tuples are the same object
        _arguments_raised_again.append(error.args)


def is_foreign(error: BaseException) -> bool:
    """Return whether an exception belongs to the user's program, and must therefore propagate.

    This is true for exceptions that are not an ``Exception`` (Ctrl-C, an exit), for exceptions
    with a signal handler in their traceback, and for those that another thread injected.
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
    """Raise ``error`` again if it belongs to the user's program.

    Raises:
        BaseException: ``error`` itself, if it is foreign.
    """
    if is_foreign(error):
        raise error


def _is_given_frame(frame: FrameType) -> bool:
    """Return whether a function was called with a frame as an argument, as signal handlers are."""
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
    """Return whether another thread injected the exception.

    That thread specifies only a class: such an exception has no message and was not raised by a
    ``raise`` statement. ``last`` is the innermost part of the exception's traceback.
    """
    if last.tb_frame.f_code.co_code[last.tb_lasti] in _RAISING or isinstance(error, _WORDLESS):
        return False
    kind = type(error)
    if kind.__module__ in _QUEUE_EMPTY:
        return False
    # C code raises exceptions with a message and a class implemented in C. A class with its own
    # constructor in Python may create the message itself.
    return not error.args or any(
        isinstance(vars(base).get(name), FunctionType | staticmethod)
        for base in kind.__mro__
        for name in ("__init__", "__new__")
    )
