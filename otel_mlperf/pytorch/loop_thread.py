"""Thread that runs the observed training loop."""

from __future__ import annotations

import threading
from typing import ClassVar

from otel_mlperf.recorder.core.thread_ident import get_ident


class LoopThread:
    """Thread of the training loop: the main thread, unless a framework trains in another thread."""

    # Compared by ident: `current_thread()` would register the threads of autograd with Python.
    ident: ClassVar[int | None] = (
        get_ident()
        if threading.current_thread() is threading.main_thread()
        else threading.main_thread().ident
    )

    @classmethod
    def is_here(cls) -> bool:
        """Return whether the current thread is the loop's thread."""
        return get_ident() == cls.ident

    @classmethod
    def move_here(cls) -> None:
        """Make the current thread the loop's thread from now on."""
        cls.ident = get_ident()
