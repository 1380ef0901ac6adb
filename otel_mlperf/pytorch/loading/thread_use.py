"""CPU time of the current thread, and its time waiting for a CPU.

In the rest of its time the thread waits for something else: a file, the network, a lock.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final, NamedTuple

from otel_mlperf.own_descriptor import OwnDescriptor
from otel_mlperf.recorder.core.interrupts import raises_afterwards

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

    _file: OwnDescriptor | None = None

    def __init__(self, path: str = _PATH) -> None:
        with suppress(OSError):
            self._file = OwnDescriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def read(self) -> Used:
        """Up to now."""
        return Used(time.thread_time_ns(), self._delay_ns())

    def _delay_ns(self) -> int:
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file.fd, _LONGEST, 0).split(None, 2)[1])
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Gives the descriptor back."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # A thread's goes with it.
    __del__ = raises_afterwards(close)
