"""CPU time and peak memory of this process since the run started, over all threads.

Both are stored in cells, so that they are available even if the run ends before the agent has read
the process's values.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.recorder.core.used_so_far import Counters, PeakSinceStart, peak_bytes

if TYPE_CHECKING:
    from otel_mlperf.recorder.instruments.cells import Cells

_EVERY_NS: Final = 1_000_000_000
_START_TICKS: Final = 19
"""Index of the start time since boot in ``/proc/<pid>/stat``, counted behind the name."""


def store_import_time(cells: Cells, start_ns: int) -> None:
    """Record the process's age at the run's start, ``start_ns``, unless an earlier run did so."""
    global _is_recorded
    age_s = None if _is_recorded else read_age_s()
    _is_recorded = True
    if age_s is not None:
        before_s = max(0.0, age_s - (time.monotonic_ns() - start_ns) / 1e9)
        cells.set(names.RUN_IMPORTS.name, names.RUN_IMPORTS.unit, before_s)


_is_recorded = False
"""Whether a run was started before: the time before a later run is not import time."""


def read_age_s(stat: Path = Path("/proc/self/stat")) -> float | None:
    """Return the age of the process in seconds, exact to 0.01 s; None if it cannot be read."""
    try:
        ticks = int(stat.read_bytes().rpartition(b")")[2].split()[_START_TICKS])
        began_s = ticks / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
    except (OSError, ValueError, IndexError, AttributeError):  # only Linux has this clock
        return None


class ProcessUse:
    """Recorder of the CPU time, memory and context switches of the process during a run."""

    def __init__(self, cells: Cells) -> None:
        self._cells, self._due_ns = cells, 0
        self._recorded_ns = time.process_time_ns()
        self._counters, self._peak = Counters(), PeakSinceStart(peak_bytes())

    def look(self, now_ns: int) -> None:
        """Add the usage since the last call to the run's cells, at most once a second."""
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _EVERY_NS
            self.finish()

    def peaks(self) -> dict[str, int]:
        """Return the memory peak so far as an epoch's attribute; no attribute if it is unknown."""
        peak_bytes_so_far = self._peak.update(peak_bytes(), self._counters.resident_bytes() or 0)
        return {names.EPOCH_MEMORY_PEAK: peak_bytes_so_far} if peak_bytes_so_far else {}

    def finish(self) -> None:
        """Add the usage since the last call to the run's cells."""
        used_ns, recorded_ns = time.process_time_ns(), self._recorded_ns
        self._recorded_ns = used_ns
        cpu, peak = names.RUN_CPU, names.RUN_MEMORY_PEAK
        self._cells.add(cpu.name, cpu.unit, (used_ns - recorded_ns) / 1e9)
        for peak_bytes_so_far in self.peaks().values():
            self._cells.set(peak.name, peak.unit, peak_bytes_so_far)
