"""Turns of an event loop: detection of other tasks' work in the calling thread.

A loop runs a task in turns, each a callback of its own. Within one turn nothing else runs in its
thread. A section that started in one turn and ended in another has waited in between, and the
thread's counters then include the usage of other tasks.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.recorder.core.tracks import is_in_task

if TYPE_CHECKING:
    from types import FrameType

NO_LOOP: Final = None
"""No event loop runs in the thread: all that it does between two moments is the caller's."""
MANY: Final = object()
"""More than one turn, or unknown (a loop that is not asyncio's own)."""


def current_turn() -> Any:
    """Return the turn that the caller's thread is in, for ``is_same_turn``."""
    if not is_in_task():
        return NO_LOOP
    run = sys.modules["asyncio.events"].Handle._run.__code__
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is run:
            handle = frame.f_locals["self"]
            return weakref.ref(handle) if handle is not None else MANY
        frame = frame.f_back
    return MANY


def is_same_turn(begun: Any, ended: Any) -> bool:
    """Return whether nothing else ran in the thread between two results of ``current_turn``."""
    if begun is NO_LOOP or begun is MANY:
        return begun is NO_LOOP and ended is NO_LOOP
    return isinstance(ended, weakref.ref) and begun() is not None and begun() is ended()
