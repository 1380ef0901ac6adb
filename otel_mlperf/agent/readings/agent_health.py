"""How does the agent itself do, and how full did it find the journals?"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.sensors.kernel_files import KeptFile
from otel_mlperf.sensors.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")

Fullest = dict[int, tuple[int, int]]
"""Bytes that waited and that there is room for, by process."""


class HealthSensor:
    """The agent's own CPU time and memory, and the journals of the ranks.

    Where the agent is a thread of the program its memory is not known apart.
    """

    def __init__(self, fullest: Callable[[], Fullest], proc: Path) -> None:
        self._fullest = fullest
        self._is_process = threading.current_thread() is threading.main_thread()
        self._statm = KeptFile(proc / "self" / "statm")

    def read(self) -> list[Measurement]:
        """What is so now; ``fullest`` is asked once."""
        found = self._of_process() if self._is_process else self._of_thread()
        for pid, (waited, room) in self._fullest().items():
            found.append(Measurement(names.JOURNAL_USAGE.name, {}, waited, pid))
            found.append(Measurement(names.JOURNAL_LIMIT.name, {}, room, pid))
        return found

    def _of_process(self) -> list[Measurement]:
        times = os.times()
        used = {
            "user": times.user + times.children_user,
            "system": times.system + times.children_system,
        }
        found = [
            Measurement(names.AGENT_CPU_TIME.name, {names.CPU_MODE: mode}, seconds)
            for mode, seconds in used.items()
        ]
        words = self._statm.read().split()
        if len(words) > 1:
            found.append(Measurement(names.AGENT_MEMORY.name, {}, int(words[1]) * _PAGE))
        return found

    def _of_thread(self) -> list[Measurement]:
        return [Measurement(names.AGENT_CPU_TIME.name, {}, time.thread_time())]

    def close(self) -> None:
        """Closes its file."""
        self._statm.close()
