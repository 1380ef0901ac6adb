"""Does PyTorch's CUDA allocator ask the driver for memory in step after step?

It keeps what tensors give back, so that a loop asks in its first steps and hardly ever again.
Where its cache is emptied in the loop, or where sizes change from step to step, it does so again
and again; the driver gives memory back only when the GPU has done all its work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.findings.gpu_busy import read_gpu_busy
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of
from otel_mlperf.store.table_reader import label_path

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_FEWEST: Final = 2
"""Stretches between two readings, in the run's later half, in each of which it asks."""
_ASKED: Final = """WITH read AS (
    SELECT rank, restart, labels ->> $device AS device, time_ns, lag(time_ns) OVER series AS since,
        value - lag(value) OVER series AS times,
        min(time_ns) OVER all_of_it AS first, max(time_ns) OVER all_of_it AS last
    FROM readings WHERE name = $name AND rank IS NOT NULL
    WINDOW all_of_it AS (PARTITION BY rank, restart, labels),
        series AS (PARTITION BY rank, restart, labels ORDER BY time_ns)),
stretches AS (SELECT read.rank, read.restart, device, since, times, count(*) AS steps
    FROM read JOIN steps s ON s.rank = read.rank AND s.restart = read.restart
        AND s.end_ns > since AND s.end_ns <= read.time_ns
    WHERE since >= first + (last - first) / 2 GROUP BY ALL)
SELECT rank, device, sum(times), sum(steps)::DOUBLE, min(times / steps) FROM stretches
GROUP BY rank, restart, device HAVING count(*) >= $fewest ORDER BY 5 DESC"""


def find_device_allocations(numbers: RunNumbers) -> list[Finding]:
    """One, of the rank and device that ask most often in the run's later half."""
    row = row_of("device_allocations")
    busy = read_gpu_busy(numbers)
    for rank, index, times, steps, least in numbers.store.rows(
        _ASKED,
        name=names.CUDA_DEVICE_ALLOCATIONS.name,
        device=label_path(names.DEVICE_INDEX),
        fewest=_FEWEST,
    ):
        if row.holds(least):
            # What the GPU idles for it is not known apart from what it idles for other reasons.
            gain = Gain(low=0.0, high=1 - busy[rank]) if rank in busy else None
            return [
                Finding(
                    id=row.id,
                    severity=row.severity,
                    summary=row.summary.format(value=times / steps),
                    action=row.action,
                    evidence={"allocations": times, "steps": steps},
                    where=Where(rank=rank, device=f"cuda:{index}"),
                    gain=gain,
                    command=f"otel-mlperf show {numbers.summary.short_id}",
                )
            ]
    return []
