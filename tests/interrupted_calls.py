"""How is a call interrupted at its n-th moment inside some package, as by Ctrl-C?

The interpreter runs signal handlers, and raises what other threads inject, between two
instructions: after each call of a function written in C, at each jump back, and at the first
instruction of each function of Python. Here each of these moments in a package's functions comes in
turn, so that nothing depends on luck.
"""

from __future__ import annotations

import opcode
import sys
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


class Interruption:
    """Raises ``error`` at the moment numbered ``at`` inside a package, counted from 0."""

    def __init__(self, package: ModuleType, at: int, error: BaseException) -> None:
        assert package.__file__ is not None
        self._folder = str(Path(package.__file__).parent)
        self._left, self._error = at, error
        self._called: dict[FrameType | None, bool] = {}
        self.where: str | None = None
        """Where it was raised; None: the call ended before."""

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function; what is raised goes on."""
        sys.settrace(self._enter)
        try:
            function()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        # The call that led here is not over: it is no moment of the caller's.
        self._called.pop(frame.f_back, None)
        if not frame.f_code.co_filename.startswith(self._folder):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._look

    def _look(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "opcode" or self.where is not None:
            return self._look
        code, at = frame.f_code.co_code, frame.f_lasti
        is_after_call = self._called.pop(frame, False)
        if code[at] in _CALLS:
            self._called[frame] = True
        is_begin = code[at] == _RESUME and code[at + 1] < _AFTER_YIELD_FROM
        if code[at] == _AWAIT:
            is_after_call = False  # a coroutine was made: no function of C
        if not (is_after_call or is_begin or code[at] == _JUMP):
            return self._look
        if self._left:
            self._left -= 1
            return self._look
        name = opcode.opname[code[at]]
        self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} {name}"
        raise self._error


def interruptions(
    package: ModuleType, error: Callable[[], BaseException], function: Callable[[], object]
) -> Iterator[tuple[Interruption, BaseException, BaseException | None]]:
    """Calls ``function`` once for each moment of it; what was raised then, and what arrived."""
    at = 0
    while True:
        raised = error()
        interruption, arrived = Interruption(package, at, raised), None
        try:
            interruption.call(function)
        except BaseException as caught:  # noqa: BLE001 - Ctrl-C is what this is about
            arrived = caught.with_traceback(None)
        if interruption.where is None:
            return
        yield interruption, raised, arrived
        at += 1
