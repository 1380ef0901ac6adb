"""What is an instruction of a function calling, by the name that its line has for it?

A C function has no frame. The instruction that loads what is called begins where the call begins in
the source (``loss`` in ``loss.item()``), and the last one of these before the call loads ``item``.
"""

from __future__ import annotations

import dis
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType

ITERATION: Final = "iteration"
"""A ``for`` asks for the next one."""
WITH: Final = "with"
"""A block enters a context manager: one written in C, such as a lock, has no frame."""
_Start = tuple["int | None", "int | None"]
"""Line and column."""
_CALLS: Final = ("CALL", "PRECALL")  # the latter of Python 3.11: it may do the call itself
_LOADS: Final = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")


def called_name(code: CodeType, at: int) -> tuple[int, str]:
    """Line of the instruction at offset ``at``, and what it calls; empty: it is no call.

    The line is 0 where the code says none.
    """
    loaded: dict[_Start, str] = {}
    start: _Start = (None, None)
    name = ""
    for one in dis.get_instructions(code):
        if one.offset > at:
            break  # behind the instruction may lie its caches, which is where it can be, too
        positions = one.positions
        start = (positions.lineno, positions.col_offset) if positions else (None, None)
        name = loaded.get(start, "") if one.opname.startswith(_CALLS) else ""
        if one.opname == "FOR_ITER":
            name = ITERATION
        elif one.opname == "BEFORE_WITH":
            name = WITH
        elif one.opname.startswith(_LOADS):
            loaded[start] = str(one.argval)
    return start[0] or 0, name
