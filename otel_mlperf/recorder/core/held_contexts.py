"""Copies of contexts that prevent a crash of Python 3.11 in garbage collections.

Up to Python 3.11, a collection can start wherever an object is allocated, even inside
``ContextVar.set`` and ``reset``. If a finalizer or signal handler then sets a context variable, it
frees variables that the interrupted call still reads, and the interpreter crashes (CPython
gh-148891). A copy of the context keeps these variables alive. Later versions of Python collect only
between two instructions.
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
    """Copy the context at the start of each garbage collection; keep the copy until the next.

    As a side effect, an object that the program removes from its context after a collection is
    freed only at the next one. Since Python 3.12, this function does nothing.
    """
    if sys.version_info >= _COLLECTS_BETWEEN_INSTRUCTIONS:
        return
    newest: deque[contextvars.Context] = deque(maxlen=1)
    # C functions only: a Python function checks for signals before its first instruction, when the
    # context is not copied yet. The collector calls ``getattr(copies, "start", info)``, which makes
    # a copy, and ``getattr(copies, "stop", info)``, which only returns the default ``info``.
    hold: Any = partial(getattr, _Copies(newest.append, iter(contextvars.copy_context, None)))
    gc.callbacks.insert(0, hold)

    def end() -> None:
        with suppress(ValueError):  # the program has emptied the list
            gc.callbacks.remove(hold)
        newest.clear()

    recording.at_retire.append(end)
