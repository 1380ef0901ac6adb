"""Finding of repeated driver allocations by PyTorch's CUDA allocator during training.

The allocator caches freed memory, so a loop usually requests driver memory in its first steps only.
It repeats the requests where its cache is emptied in the loop, or where sizes change from step to
step. The driver frees memory only after the GPU has finished all its work.
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
"""Minimum number of intervals between two readings in the run's later half, each with a request."""
# Only the steps of ranks whose allocator requests memory in the later half are counted.
_ASKED: Final = """WITH read AS (
    SELECT rank, restart, labels ->> $device AS device, time_ns, value,
        (min(time_ns) OVER series + max(time_ns) OVER series) / 2 AS middle
    FROM readings WHERE name = $name AND rank IS NOT NULL
    WINDOW series AS (PARTITION BY rank, restart, labels ->> $device)),
asking AS (SELECT rank FROM read WHERE time_ns >= middle
    GROUP BY rank, restart, device HAVING max(value) > min(value)),
done AS (SELECT rank, restart, end_ns,
        row_number() OVER (PARTITION BY rank, restart ORDER BY end_ns) AS steps
    FROM steps WHERE phase = $phase AND rank IN (FROM asking)),
known AS (SELECT read.rank AS rank, read.restart AS restart, device, steps,
        max(time_ns) AS time_ns, max(value) AS value
    FROM read ASOF JOIN done ON read.rank = done.rank AND read.restart = done.restart
        AND read.time_ns >= done.end_ns GROUP BY ALL),
stretches AS (SELECT rank, restart, device, value - lag(value) OVER series AS times,
        steps - lag(steps) OVER series AS steps, lag(time_ns) OVER series AS since,
        (min(time_ns) OVER of_all + max(time_ns) OVER of_all) / 2 AS middle
    FROM known WINDOW of_all AS (PARTITION BY rank, restart, device),
        series AS (PARTITION BY rank, restart, device ORDER BY time_ns))
SELECT rank, device, sum(times), sum(steps)::DOUBLE, min(times / steps) FROM stretches
WHERE since >= middle GROUP BY rank, restart, device
HAVING count(*) >= $fewest ORDER BY 5 DESC LIMIT 1"""


def find_device_allocations(numbers: RunNumbers) -> list[Finding]:
    """Return one finding, for the rank and device with most requests in the run's later half."""
    row, figures = row_of("device_allocations"), numbers.summary.steps
    if figures is None:
        return []
    asked = numbers.store.rows(
        _ASKED,
        name=names.CUDA_DEVICE_ALLOCATIONS.name,
        device=label_path(names.DEVICE_INDEX),
        phase=figures.phase,
        fewest=_FEWEST,
    )
    if not asked or not row.holds(asked[0][-1]):
        return []
    rank, index, times, steps, _ = asked[0]
    # GPU idle time caused by allocations cannot be separated from other idle time.
    idle = {of: 1 - busy for of, busy in read_gpu_busy(numbers).items()}
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=times / steps),
            action=row.action,
            evidence={"allocations": times, "steps": steps},
            where=Where(rank=rank, device=f"cuda:{index}"),
            gain=Gain(low=0.0, high=idle[rank]) if rank in idle else None,
            command=f"otel-mlperf show {numbers.summary.short_id}",
        )
    ]
