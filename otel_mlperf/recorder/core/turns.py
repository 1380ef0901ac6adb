"""Turns of an event loop, by which a section detects that other tasks ran in its thread.

An event loop runs a task in turns; each turn is one callback of the loop. Within one turn, no other
task runs in the thread. A section that started in one turn and ended in another has waited in
between, so the thread's resource counters may include the usage of other tasks.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.recorder.core.tracks import is_in_task

if TYPE_CHECKING:
    from types import FrameType

NO_LOOP: Final = None
"""No event loop runs in the thread, so no other task can run in it between two moments."""
MANY: Final = object()
"""More than one turn (for a generator), or unknown (if the event loop is not asyncio's own)."""


def current_turn() -> Any:
    """Return the current turn of the caller's thread, for a comparison by ``is_same_turn``."""
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
    """Return whether no other task ran in the thread between two calls of ``current_turn``."""
    if begun is NO_LOOP or begun is MANY:
        return begun is NO_LOOP and ended is NO_LOOP
    return isinstance(ended, weakref.ref) and begun() is not None and begun() is ended()
