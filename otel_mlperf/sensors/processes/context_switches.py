"""How often was a process taken off a CPU?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_mlperf.sensors.kernel_files import entries, field, read_once

if TYPE_CHECKING:
    from pathlib import Path


class Switches(NamedTuple):
    """Context switches of threads."""

    voluntary: int
    """It waited for something."""
    involuntary: int
    """It had more to do, but something else got the CPU."""

    def __add__(self, other: object) -> Switches:
        if not isinstance(other, Switches):
            return NotImplemented
        return Switches(self.voluntary + other.voluntary, self.involuntary + other.involuntary)


def parse_switches(text: bytes) -> Switches | None:
    """Of ``/proc/<pid>/task/<tid>/status``; None where it does not say."""
    voluntary = field(text, b"voluntary_ctxt_switches:")
    involuntary = field(text, b"nonvoluntary_ctxt_switches:")
    if voluntary is None or involuntary is None:
        return None
    return Switches(voluntary, involuntary)


class SwitchCounter:
    """Sums over all threads: the file of the process itself tells only of its first thread."""

    def __init__(self, process: Path) -> None:
        self._tasks = process / "task"
        self._threads: dict[str, Switches] = {}
        self._ended = Switches(0, 0)

    def read(self) -> Switches | None:
        """Never less than before: threads that ended count with what was last read of them."""
        threads: dict[str, Switches] = {}
        for thread in entries(self._tasks):
            found = parse_switches(read_once(self._tasks / thread / "status"))
            if found is not None:
                threads[thread] = found
        for thread, last in self._threads.items():
            if thread not in threads:
                self._ended += last
        self._threads = threads
        return sum(threads.values(), self._ended) if threads else None
