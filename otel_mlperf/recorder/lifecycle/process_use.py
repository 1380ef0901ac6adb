"""What has this process used since the run began: CPU time of all its threads, and memory at most?

Counted in cells, so that it is known however the run ends, and of a run that is over before anybody
has read its process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.recorder.core.used_so_far import peak_bytes

if TYPE_CHECKING:
    from otel_mlperf.recorder.instruments.cells import Cells

_EVERY_NS: Final = 1_000_000_000


class ProcessUse:
    """What one run's process uses from now on."""

    def __init__(self, cells: Cells) -> None:
        self._cells, self._due_ns = cells, 0
        self._told_ns = time.process_time_ns()

    def look(self, now_ns: int) -> None:
        """Counts what was used since it last looked, once a second at most."""
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _EVERY_NS
            self.finish()

    def finish(self) -> None:
        """Counts it at once."""
        used_ns, told_ns = time.process_time_ns(), self._told_ns
        self._told_ns = used_ns
        cpu, peak = names.RUN_CPU, names.RUN_MEMORY_PEAK
        self._cells.add(cpu.name, cpu.unit, (used_ns - told_ns) / 1e9)
        self._cells.set(peak.name, peak.unit, peak_bytes())
