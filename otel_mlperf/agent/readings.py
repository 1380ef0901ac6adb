"""How much processor time and memory does each rank's process use?

A value that cannot be read is absent.
"""

from __future__ import annotations

import psutil

from otel_mlperf import names
from otel_mlperf.agent.events import Reading


def read_processes(pids: dict[str, int]) -> list[Reading]:
    """Readings of the processes, by the name of their journal."""
    found: list[Reading] = []
    for journal, pid in pids.items():
        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
        except psutil.Error:
            continue
        for mode in ("user", "system"):
            labels = {"cpu.mode": mode}
            value = float(getattr(times, mode))
            found.append(Reading(journal, names.PROCESS_CPU_TIME.name, labels, value))
        found.append(Reading(journal, names.PROCESS_MEMORY.name, {}, float(memory.rss)))
    return found
