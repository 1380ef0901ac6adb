"""Abandoned loops: steps and epochs whose iterator was dropped by ``break`` or an exception.

A finalizer cannot see the exception that is propagating: the interpreter hides it. But it sees the
current instruction of the loop's frame. ``break`` and ``return`` remove the iterator from the stack
by an instruction of their own; an exception leaves the frame at the instruction that raised.

A loop that may have failed stays pending until its outcome is known: the exception arrives at an
enclosing section, or the program continues.
"""

from __future__ import annotations

import contextlib
import opcode
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_mlperf.recorder.sections.section_context import CURRENT, SectionContext, context_above

if TYPE_CHECKING:
    from otel_mlperf.recorder.sections.slow_path import SlowPath

End = Callable[[int, "list[str] | None"], None]
"""Writes a dropped section, given its end and its error, if any."""
# Instructions that release an iterator in an orderly way: the loop's end, break and return; a
# variable that referred to it; a generator whose own loop it was.
_CALM = ("POP_TOP", "POP_ITER", "END_FOR", "RETURN", "DELETE", "STORE", "YIELD", "RESUME", "NOP")


def is_suspicious(depth: int) -> bool:
    """Return whether the frame ``depth`` levels up may be left by an exception.

    Also true where a C function (``zip``) referred to the iterator: then nothing is known.
    """
    try:
        # 0 is this, 1 drop(), 2 __del__(): 3 is the frame that released the iterator. A C function
        # that referred to it has no frame; then this is the frame of its caller.
        frame = sys._getframe(depth)
    except ValueError:  # the interpreter ends
        return False
    name = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
    return not name.startswith(_CALM)


class _Abandoned(NamedTuple):
    section: SectionContext
    end_ns: int
    end: End


class AbandonedLoops:
    """Abandoned loops: steps and epochs of one recorder whose outcome is not known yet."""

    def __init__(self, sections: SlowPath) -> None:
        self._sections = sections
        self._waiting: list[_Abandoned] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, section: SectionContext, end: End, *, is_suspicious: bool) -> None:
        """Add a section whose loop's iterator is gone: by ``break``, or perhaps an exception.

        Args:
            section: the step or epoch of the loop.
            end: writes the section.
            is_suspicious: whether an exception may be propagating.
        """
        now = time.monotonic_ns()
        if is_suspicious:
            self._waiting.append(_Abandoned(section, now, end))
        else:
            end(now, None)
        self._leave_waiting()

    def _leave_waiting(self) -> None:
        """Make pending sections non-current: their ends are written later, and enclose nothing."""
        # An exception may keep the inner loop's iterator longer than the outer one's. The outer
        # section is then current only once the inner one is left.
        waiting = {id(loop.section) for loop in self._waiting}
        while id(current := CURRENT.get()) in waiting:
            waiting.discard(id(current))
            self._sections.leave(current)

    def settle(self, error: list[str] | None) -> None:
        """End all pending sections: failed if an exception came out of their loops."""
        for loop in list(self._waiting):  # a copy: an end may end other sections that wait here
            self._end(loop, error)

    def settle_inside(self, section: SectionContext, error: list[str]) -> None:
        """End the pending sections inside a section that the exception has reached."""
        for loop in list(self._waiting):
            if _encloses(section, loop.section):
                self._end(loop, error)

    def settle_one(self, section: SectionContext, error: list[str] | None) -> bool:
        """End the pending section ``section``; False if it is not pending."""
        for loop in list(self._waiting):
            if loop.section is section:
                self._end(loop, error)
                return True
        return False

    def _end(self, loop: _Abandoned, error: list[str] | None) -> None:
        if loop not in self._waiting:
            return
        try:
            loop.end(loop.end_ns, error)
        finally:  # not before, because of interrupts in between; ending twice does nothing
            with contextlib.suppress(ValueError):  # another thread has removed it
                self._waiting.remove(loop)


def _encloses(outer: SectionContext, inner: SectionContext) -> bool:
    above: Any = inner
    while isinstance(above, SectionContext) and above is not outer:
        above = context_above(above)
    return above is outer
