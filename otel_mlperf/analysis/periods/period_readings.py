"""What did the processes use in each period, and for how much of it were they there?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.periods.period_shapes import PeriodProcess

if TYPE_CHECKING:
    from otel_mlperf.analysis.periods.period_grid import Grid
    from otel_mlperf.analysis.run.run_processes import Processes
    from otel_mlperf.store.table_reader import Store

# What the kernel has as the peak is one of the period in which it was seen to rise.
_USED: Final = """WITH read AS (
    SELECT name, labels, time_ns, value, value - lag(value) OVER series AS more,
        time_ns - lag(time_ns) OVER series AS held_ns
    FROM readings WHERE name = $peak OR (name IN ($cpu, $memory) AND contains(labels, $main))
    WINDOW series AS (PARTITION BY name, labels, rank, restart ORDER BY time_ns))
SELECT least(greatest((time_ns - $origin) // $every, 0), $last),
    sum(more) FILTER (name = $cpu) * 1e9 * count(DISTINCT labels) FILTER (name = $cpu)
        / nullif(sum(held_ns) FILTER (name = $cpu), 0),
    max(value) FILTER (name = $memory OR (name = $peak AND coalesce(more > 0, true)))::BIGINT
FROM read GROUP BY 1"""


def read_use_by_period(store: Store, grid: Grid) -> dict[int, PeriodProcess]:
    """By number of the period; those in which nothing was read are not there."""
    rows = store.rows(
        _USED,
        cpu=names.PROCESS_CPU_TIME.name,
        memory=names.PROCESS_MEMORY.name,
        peak=names.RUN_MEMORY_PEAK.name,
        main=json.dumps({names.PROCESS_ROLE: "main"})[1:-1],
        origin=grid.origin_ns,
        every=grid.every_ns,
        last=grid.periods - 1,  # what was read at its end is of the run, too
    )
    return {period: PeriodProcess(cpus=cpus, memory_peak_bytes=peak) for period, cpus, peak in rows}


def lived_by_period(processes: Processes, grid: Grid) -> list[int]:
    """For how long in each period at least one process was there."""
    lived = [0] * grid.periods
    until = grid.origin_ns
    for process in sorted(processes.all, key=lambda one: one.start_ns):
        begin, end = max(process.start_ns, until), processes.end_of(process)
        until = max(until, end)
        while begin < end:
            number = (begin - grid.origin_ns) // grid.every_ns
            upto = min(end, grid.begin_ns(number + 1))
            lived[number] += upto - begin
            begin = upto
    return lived
