"""Interruption of a call at its n-th moment inside a package, as by Ctrl-C.

The interpreter runs signal handlers, and raises what other threads inject, between two
instructions: after each call of a function written in C, at each jump back, and at the first
instruction of each function of Python. Here each of these moments in a package's functions comes in
turn, so that nothing depends on luck.
"""

from __future__ import annotations

import ctypes
import itertools
import opcode
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, ModuleType

_RESUME, _JUMP = opcode.opmap["RESUME"], opcode.opmap["JUMP_BACKWARD"]
_AWAIT = opcode.opmap["GET_AWAITABLE"]
_CALLS = (opcode.opmap["CALL"], opcode.opmap["CALL_FUNCTION_EX"])
_AFTER_YIELD_FROM = 2
"""From this argument on RESUME does not look for signals."""
_NEVER = -1


class _Injected(BaseException):
    """Raised in a thread by its class, it is the exception that was given."""

    given: BaseException

    def __new__(cls, *made: Any) -> Any:
        return made[0] if made else cls.given


class _Threads:
    """``threads[number] = class`` raises in a thread, at the next instruction that looks."""

    # An assignment, for after a call the interpreter would look at once.
    __setitem__ = raise_in = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
    raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)


_threads: Any = _Threads()


def raise_at_next_look(error: BaseException) -> None:
    """Has the interpreter raise it in this thread where it looks for signals next."""
    _Injected.given, here = error, threading.get_ident()
    _threads[here] = _Injected


class Interruption:
    """Raises ``error`` at a moment inside a package.

    Args:
        package: what is interrupted.
        at: number of the moment among those after calls and jumps, counted from 0; -1: at none.
        error: what is raised.
        begin: the function whose first instruction it is, and the number of the instruction before
            that, as ``begins`` of a call that was not interrupted has them.
    """

    def __init__(
        self, package: ModuleType, at: int, error: BaseException, begin: tuple[str, int] = ("", 0)
    ) -> None:
        assert package.__file__ is not None
        self._folder, self._file = str(Path(package.__file__).parent), ""
        self._left, self._error = at, error
        self._called: dict[FrameType | None, bool] = {}
        self._thread, self._instructions = threading.get_ident(), 0
        self._begin = begin
        self.begins: list[tuple[str, int]] = []
        """The functions that were entered, and after how many instructions."""
        self.where: str | None = None
        """Where it was raised; None: the call ended before."""

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function; what is raised goes on."""
        self._file = function.__code__.co_filename  # type: ignore[attr-defined]
        sys.settrace(self._enter)
        try:
            function()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        # The call that led here is not over: it is no moment of the caller's.
        self._called.pop(frame.f_back, None)
        if not frame.f_code.co_filename.startswith((self._folder, self._file)):
            return None  # of others: not followed, which takes long
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if not frame.f_code.co_filename.startswith(self._folder):
            return self._count
        code, at = frame.f_code.co_code, frame.f_lasti
        is_followed = frame.f_back is not None and frame.f_back.f_trace is not None
        if is_followed and code[at] == _RESUME and code[at + 1] < _AFTER_YIELD_FROM:
            name = f"{frame.f_code.co_qualname}:{frame.f_lineno} RESUME"
            self.begins.append((name, self._instructions))
        return self._look

    def _count(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self._instructions += 1
            if self._instructions == self._begin[1]:
                self.where, _Injected.given = self._begin[0], self._error
                # A traced function is at another place at its first instruction, in front of each
                # ``try``. And no call from here on: it would be raised after that.
                sys.settrace(None)
                _threads[self._thread] = _Injected
        return self._count

    def _look(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode" or self.where is not None:
            return self._look
        self._instructions += 1
        if self._instructions == self._begin[1]:
            self.where, _Injected.given = self._begin[0], self._error
            sys.settrace(None)  # as above
            _threads[self._thread] = _Injected
            return self._look
        code, at = frame.f_code.co_code, frame.f_lasti
        is_after_call = self._called.pop(frame, False)
        if code[at] in _CALLS:
            self._called[frame] = True
        if code[at] == _AWAIT:
            is_after_call = False  # a coroutine was made: no function of C
        if not (is_after_call or code[at] == _JUMP):
            return self._look
        if self._left:
            self._left -= 1
            return self._look
        name = opcode.opname[code[at]]
        self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} {name}"
        raise self._error


class SecondInterruption(Interruption):
    """Raises ``error`` at a moment after a call, and another at a moment after that.

    As two signals that have come together: the handler of the second is run at the next moment,
    which is where the first one's mess is being cleared away.

    Args:
        package: what is interrupted.
        at: number of the first moment, as of ``Interruption``.
        error: what is raised then.
        after: number of the second moment, counted from 0 after the first: when a function of
            Python begins, or one written in C has returned.
        another: what is raised then.
    """

    def __init__(
        self,
        package: ModuleType,
        at: int,
        error: BaseException,
        after: int,
        another: BaseException,
    ) -> None:
        super().__init__(package, at, error)
        self._after, self._another = after, another
        self.second_where: str | None = None
        """Where the second was raised; None: the call ended before."""

    def call(self, function: Callable[[], object]) -> None:
        try:
            super().call(function)
        finally:
            sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, _: Any) -> Any:
        try:
            return super()._look(frame, event, _)
        except BaseException:
            # The interpreter traces no longer once a trace function has raised.
            sys.setprofile(self._look_again)
            raise

    def _look_again(self, frame: FrameType, event: str, about: Any) -> None:
        if not frame.f_code.co_filename.startswith(self._folder):
            return
        if event != "c_return" and not (event == "call" and _looks_for_signals(frame)):
            return
        if self._after:
            self._after -= 1
            return
        self.second_where = f"{frame.f_code.co_qualname}:{frame.f_lineno} {event}"
        sys.setprofile(None)
        if event == "c_return":
            raise self._another
        _Injected.given = self._another
        _threads[self._thread] = _Injected


def _looks_for_signals(frame: FrameType) -> bool:
    """Whether a function of Python that is called looks at its first instruction."""
    code, at = frame.f_code.co_code, frame.f_lasti
    return at >= 0 and code[at] == _RESUME and code[at + 1] < _AFTER_YIELD_FROM


def interruptions(
    package: ModuleType,
    error: Callable[[], BaseException],
    function: Callable[[], object],
    moments: slice = slice(0, None, 1),
) -> Iterator[tuple[Interruption, BaseException, BaseException | None]]:
    """Calls ``function`` once for each moment of it; what was raised then, and what arrived.

    ``moments`` takes every n-th of them, of those after calls and of those at a function's begin.
    """
    for at in itertools.count(moments.start, moments.step):
        raised = error()
        interruption = Interruption(package, at, raised)
        arrived = _interrupted(interruption, function)
        if interruption.where is None:
            break
        yield interruption, raised, arrived
    for begin in interruption.begins[moments]:
        raised = error()
        interruption = Interruption(package, _NEVER, raised, begin)
        arrived = _interrupted(interruption, function)
        if interruption.where is not None:  # else it took a shorter way this time
            yield interruption, raised, arrived


def _interrupted(
    interruption: Interruption, function: Callable[[], object]
) -> BaseException | None:
    """What arrives."""
    try:
        interruption.call(function)
    except BaseException as caught:  # noqa: BLE001 - Ctrl-C is what this is about
        return caught.with_traceback(None)
    return None


def second_interruptions(
    package: ModuleType,
    error: Callable[[], BaseException],
    function: Callable[[], object],
    most: int | None = None,
) -> Iterator[tuple[SecondInterruption, BaseException, BaseException | None]]:
    """As ``interruptions``, with another one at each of the first ``most`` moments after each."""
    for at in itertools.count():
        for after in itertools.count() if most is None else range(most):
            another = error()
            interruption = SecondInterruption(package, at, error(), after, another)
            arrived = _interrupted(interruption, function)
            if interruption.where is None:
                return
            if interruption.second_where is None:
                break
            yield interruption, another, arrived
