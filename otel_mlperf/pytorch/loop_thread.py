"""Thread in which the watched loop runs."""

from __future__ import annotations

import threading
from typing import ClassVar

from otel_mlperf.recorder.core.thread_ident import get_ident


class LoopThread:
    """One in a process: the main thread, unless a framework trains in another."""

    # Asked for by number: `current_thread()` would register the threads of autograd with Python.
    ident: ClassVar[int | None] = (
        get_ident()
        if threading.current_thread() is threading.main_thread()
        else threading.main_thread().ident
    )

    @classmethod
    def is_here(cls) -> bool:
        """Whether this is it."""
        return get_ident() == cls.ident

    @classmethod
    def move_here(cls) -> None:
        """It is this one from now on."""
        cls.ident = get_ident()
