"""Share of the time in which a rank's GPU works while steps run, and the finding of idle GPUs.

The source is the driver's utilization: the share of an interval in which at least one kernel ran,
however little of the GPU the kernel used. For the rest of the interval, the GPU was certainly idle.
A GPU counts only if the rank's torch has allocated memory on it. A reading is weighted with the
time since the previous one, because readings in the first seconds are more frequent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.findings.finding import Finding, Gain
from otel_mlperf.findings.finding_table import row_of
from otel_mlperf.store.table_reader import label_path

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers


_MIN_STEPS: Final = 3


def find_gpu_idle(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if the GPUs idle for too large a share of the steps' GPU time."""
    gpu, row = numbers.summary.gpu, row_of("gpu_idle")
    if gpu is None or gpu.steps < _MIN_STEPS or gpu.idle_ns is None:
        return []
    share = gpu.idle_ns / gpu.gpu_ns
    if not row.holds(share):
        return []
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=share),
            action=row.action,
            evidence={
                "share": share,
                "idle_ns": gpu.idle_ns,
                "gpu_ns": gpu.gpu_ns,
                "steps": gpu.steps,
            },
            gain=Gain(low=0.0, high=share),
        )
    ]


_MIN_READINGS: Final = 3
OWN_GPUS: Final = """own AS (
    SELECT DISTINCT rank, labels ->> $gpu AS gpu FROM readings
    WHERE name = $memory AND rank IS NOT NULL)"""
"""SQL subquery ``own``: the GPUs on which each rank's torch has memory."""
_BUSY: Final = f"""WITH {OWN_GPUS},
bounds AS (SELECT rank, restart, min(end_ns) AS first, max(end_ns) AS last FROM steps
    WHERE phase = $phase GROUP BY rank, restart),
read AS (SELECT own.rank AS rank, value, time_ns - coalesce(lag(time_ns) OVER (
        PARTITION BY own.rank, bounds.restart, own.gpu ORDER BY time_ns), first) AS held_ns
    FROM readings r JOIN own ON r.labels ->> $gpu = own.gpu JOIN bounds ON bounds.rank = own.rank
    WHERE r.name = $utilization AND r.labels ->> $task = $general AND time_ns > first
        AND time_ns <= last)
SELECT rank, sum(value * held_ns) / sum(held_ns) FROM read GROUP BY rank
HAVING count(*) >= $fewest"""


@once_a_run
def read_gpu_busy(numbers: RunNumbers) -> dict[int, float]:
    """Return GPU utilization by rank, 0.0 to 1.0, for ranks with enough readings."""
    steps = numbers.summary.steps
    if steps is None:
        return {}
    return dict(
        numbers.store.rows(
            _BUSY,
            gpu=label_path(names.HW_ID),
            task=label_path(names.HW_GPU_TASK),
            memory=names.CUDA_MEMORY.name,
            utilization=names.GPU_UTILIZATION.name,
            general=names.TASK_GENERAL,
            phase=steps.phase,
            fewest=_MIN_READINGS,
        )
    )


def max_possible_gain(numbers: RunNumbers) -> float:
    """Return the maximum share of a step that changes on the host can save: the GPU's idle share.

    The result is 1.0 if no GPU is used, if the GPU's idle share is unknown, or if the run has
    several ranks: a GPU counts as busy while the kernel of a collective waits for another rank.
    """
    if numbers.summary.ranks > 1:
        return 1.0
    return 1 - min(read_gpu_busy(numbers).values(), default=0.0)
