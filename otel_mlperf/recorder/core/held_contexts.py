"""Copies of contexts that protect an interrupted program from recording in a garbage collection.

Up to Python 3.11 a collection can start wherever an object is made, even inside ``ContextVar.set``
and ``reset``. If a finalizer or signal handler makes something current there, it frees the
variables that are being read, and the program crashes (CPython's gh-148891). A copy of the context
keeps those variables alive. Later Pythons collect between two instructions.
"""

from __future__ import annotations

import contextvars
import gc
import sys
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from otel_mlperf.recorder.core.recording import Recording

_COLLECTS_BETWEEN_INSTRUCTIONS: Final = (3, 12)


class _Copies(map):  # type: ignore[type-arg]
    """Iterator that advances by one when its attribute ``start`` is read."""

    start = property(next)


def hold_contexts(recording: Recording) -> None:
    """Keep the context in which each collection started until the next collection.

    Objects that have left a context are then freed by the next collection, if one came in between.
    """
    if sys.version_info >= _COLLECTS_BETWEEN_INSTRUCTIONS:
        return
    held: deque[contextvars.Context] = deque(maxlen=1)
    # All of it is C: a Python function starts with a check for signals, which is too early. The
    # collector's "start" is read as an attribute; there is no attribute for its "stop".
    hold: Any = partial(getattr, _Copies(held.append, iter(contextvars.copy_context, None)))
    gc.callbacks.insert(0, hold)

    def end() -> None:
        with suppress(ValueError):  # the program has emptied the list
            gc.callbacks.remove(hold)
        held.clear()

    recording.at_retire.append(end)
