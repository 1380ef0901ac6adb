"""How much CPU time has this thread had, and how long did it wait for a CPU?

In the rest of its time it waits for something else: a file, the network, a lock.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

_PATH: Final = "/proc/thread-self/schedstat"
"""CPU time, time in which it was ready to run and did not, turns; kernels may be without it."""
_LONGEST: Final = 128


class Used(NamedTuple):
    """Up to a moment, or between two; nanoseconds."""

    cpu_ns: int
    delay_ns: int
    """Ready to run, on no CPU; 0 where the kernel does not say."""

    def since(self, before: Used) -> Used:
        """From then to this moment."""
        return Used(self.cpu_ns - before.cpu_ns, self.delay_ns - before.delay_ns)


class ThreadUse:
    """Reads the thread that made it: 2 µs."""

    __slots__ = ("_file",)

    def __init__(self, path: str = _PATH) -> None:
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def read(self) -> Used:
        """Up to now."""
        return Used(time.thread_time_ns(), self._delay_ns())

    def _delay_ns(self) -> int:
        if self._file < 0:
            return 0
        try:
            return int(os.pread(self._file, _LONGEST, 0).split(None, 2)[1])
        except (OSError, ValueError, IndexError):
            return 0

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
