"""Thread in which the watched loop runs."""

from __future__ import annotations

import threading
from typing import ClassVar

from otel_mlperf.recorder.core.thread_ident import get_ident


class LoopThread:
    """The loop's thread of a process: the main thread, unless a framework trains in another."""

    # Queried by number: `current_thread()` would register the threads of autograd with Python.
    ident: ClassVar[int | None] = (
        get_ident()
        if threading.current_thread() is threading.main_thread()
        else threading.main_thread().ident
    )

    @classmethod
    def is_here(cls) -> bool:
        """Return whether the current thread is the loop's."""
        return get_ident() == cls.ident

    @classmethod
    def move_here(cls) -> None:
        """Make the current thread the loop's from now on."""
        cls.ident = get_ident()
