"""CPU time of the current thread, and its time waiting for a CPU.

In the rest of its time the thread waits for something else: a file, the network, a lock.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final, NamedTuple

from otel_mlperf.own_descriptor import OwnDescriptor
from otel_mlperf.recorder.core.interrupts import at_release

_PATH: Final = "/proc/thread-self/schedstat"
"""CPU time, time ready to run but not running, time slices; some kernels do not have it."""
_LONGEST: Final = 128


class Used(NamedTuple):
    """CPU use up to a moment, or between two; in nanoseconds."""

    cpu_ns: int
    delay_ns: int
    """Time ready to run, but on no CPU; 0 if the kernel does not report it."""

    def since(self, before: Used) -> Used:
        """Return the use from ``before`` to this moment."""
        return Used(self.cpu_ns - before.cpu_ns, self.delay_ns - before.delay_ns)


class ThreadUse:
    """Reader of the CPU use of the thread that made it; a reading costs 2 µs."""

    _file: OwnDescriptor | None = None

    def __init__(self, path: str = _PATH) -> None:
        with suppress(OSError):
            self._file = OwnDescriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            # The descriptor of a thread is closed with it.
            self._at_end = at_release(self._file.close)

    def read(self) -> Used:
        """Return the use up to now."""
        return Used(time.thread_time_ns(), self._delay_ns())

    def _delay_ns(self) -> int:
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file.fd, _LONGEST, 0).split(None, 2)[1])
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Close the descriptor."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
