"""Abandoned loops: steps and epochs whose iterator was dropped by ``break`` or an exception.

The finalizer of a loop's iterator must determine whether an exception ended the loop, but the
interpreter does not expose the propagating exception. The current instruction of the loop's frame
shows the cause: ``break`` and ``return`` drop the iterator by an instruction of their own; after an
exception, the frame is still at the instruction that raised.

A loop that may have failed stays pending until its outcome is known: either the exception reaches
an enclosing section, or the program continues.
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
"""Function that writes an abandoned section, given its end time and its error, if any."""
# Instructions at which an iterator is released without an exception: the loop's end, break or
# return; reassignment of a variable; and those of a generator that contained the loop.
_CALM = ("POP_TOP", "POP_ITER", "END_FOR", "RETURN", "DELETE", "STORE", "YIELD", "RESUME", "NOP")


def is_suspicious(depth: int) -> bool:
    """Return whether an exception might be propagating out of the frame ``depth`` levels up.

    Also return True if a C function (``zip``) referred to the iterator: the cause is then unknown.
    """
    try:
        # Frame 0 is this function, 1 drop(), 2 __del__(), 3 the one that released the iterator. If
        # a C function referred to the iterator, frame 3 is its caller, as it has no frame itself.
        frame = sys._getframe(depth)
    except ValueError:  # the interpreter is shutting down
        return False
    name = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
    return not name.startswith(_CALM)


class _Abandoned(NamedTuple):
    section: SectionContext
    end_ns: int
    end: End


class AbandonedLoops:
    """Pending steps and epochs of one recorder: abandoned, with an unknown outcome."""

    def __init__(self, sections: SlowPath) -> None:
        self._sections = sections
        self._waiting: list[_Abandoned] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, section: SectionContext, end: End, *, is_suspicious: bool) -> None:
        """End the section of an abandoned loop, or add it to the pending ones.

        Args:
            section: the step or epoch of the loop.
            end: writes the section.
            is_suspicious: whether an exception might be propagating, so the section stays pending.
        """
        now = time.monotonic_ns()
        if is_suspicious:
            self._waiting.append(_Abandoned(section, now, end))
        else:
            end(now, None)
        self._leave_waiting()

    def _leave_waiting(self) -> None:
        """Make pending sections non-current, because later sections are not inside these."""
        # An exception's traceback may keep the inner loop's iterator alive longer than the outer
        # one's. The outer section then becomes current when the inner one is exited: hence a loop.
        waiting = {id(loop.section) for loop in self._waiting}
        while id(current := CURRENT.get()) in waiting:
            waiting.discard(id(current))
            self._sections.leave(current)

    def settle(self, error: list[str] | None) -> None:
        """End all pending sections; they have failed if ``error`` is not None."""
        for loop in list(self._waiting):  # copied, because ``end`` may end other pending sections
            self._end(loop, error)

    def settle_inside(self, section: SectionContext, error: list[str]) -> None:
        """End the pending sections inside ``section`` as failed, because ``error`` reached it."""
        for loop in list(self._waiting):
            if _encloses(section, loop.section):
                self._end(loop, error)

    def settle_one(self, section: SectionContext, error: list[str] | None) -> bool:
        """If ``section`` is pending, end it with ``error`` and return True; else return False."""
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
        finally:  # removed last, so that an interrupt cannot lose it; ``end`` is idempotent
            with contextlib.suppress(ValueError):  # another thread has removed it
                self._waiting.remove(loop)


def _encloses(outer: SectionContext, inner: SectionContext) -> bool:
    above: Any = inner
    while isinstance(above, SectionContext) and above is not outer:
        above = context_above(above)
    return above is outer
