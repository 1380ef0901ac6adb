"""Was an iterator dropped because its loop was left, or because an exception goes through it?

A finalizer cannot see the exception that is on its way: the interpreter hides it. But it sees at
which instruction the frame of the loop stands: ``break`` and ``return`` take the iterator from the
stack by an instruction of their own; an exception leaves the frame at the one that raised.
"""

from __future__ import annotations

import opcode
import sys

_CALM = ("POP_TOP", "POP_ITER", "END_FOR", "RETURN", "DELETE", "STORE", "YIELD", "RESUME", "NOP")


def is_suspicious(depth: int) -> bool:
    """Whether the frame ``depth`` levels up may be left by an exception.

    Also true where a function written in C (``zip``) held the iterator: nothing is known then.
    """
    try:
        frame = sys._getframe(depth)
    except ValueError:  # the interpreter ends
        return False
    name = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
    return not name.startswith(_CALM)
