"""In which thread does the loop run that is watched?"""

from __future__ import annotations

import threading
from typing import ClassVar


class LoopThread:
    """One in a process: the main thread, unless a framework trains in another."""

    # Asked for by number: `current_thread()` would register the threads of autograd with Python.
    ident: ClassVar[int | None] = threading.main_thread().ident

    @classmethod
    def is_here(cls) -> bool:
        """Whether this is it."""
        return threading.get_ident() == cls.ident

    @classmethod
    def move_here(cls) -> None:
        """It is this one from now on."""
        cls.ident = threading.get_ident()
