"""Findings of steps that wait for the device: for copies from the host, and for device memory.

*Copies* are measured by the first of these sources that exists:

- profiler windows: the copy time during which the device did nothing else
- sections of transfers: a call that only starts an asynchronous copy is short
- sampled lines of the loop: ``Tensor.to`` and ``Tensor.cuda`` are not recorded as sections

*Device memory*: PyTorch's CUDA allocator caches freed memory, so a loop usually requests memory
from the driver in its first steps only. The allocator repeats the requests if the loop empties
the cache, or if sizes change from step to step. The driver frees memory only after the GPU has
finished all pending work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.findings.gpu_busy import read_gpu_busy
from otel_mlperf.analysis.findings.sampled_lines import find_copying_lines
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of
from otel_mlperf.store.table_reader import label_path

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers


_DEVICES: Final = """SELECT sum(window_ns), sum(copy_ns), sum(exposed_copy_ns) FROM streams
    WHERE stream IS NULL"""
_COPIES: Final = """SELECT sum(total_ns), sum(total_ns) FILTER (direction = 'H2D'),
    sum(total_ns) FILTER (direction = 'H2D' AND pageable) FROM copies WHERE direction <> 'set'"""
_PAGEABLE: Final = ": most of the copied memory is not pinned"
_PINNED: Final = ""


def find_transfers(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if copies to the device cost too large a share of a step, else none."""
    summary = numbers.summary
    if summary.steps is None:
        return []
    found = _by_windows(numbers) or _by_sections(numbers)
    is_named = any(row.category == names.TRANSFER for row in summary.steps.rows)
    return found if found or is_named else find_copying_lines(numbers)


def _by_windows(numbers: RunNumbers) -> list[Finding]:
    ((window_ns, copy_ns, exposed_ns),) = numbers.store.rows(_DEVICES)
    ((total_ns, to_device_ns, pageable_ns),) = numbers.store.rows(_COPIES)
    if not window_ns or not copy_ns or not to_device_ns:
        return []
    # The direction of exposed copies is unknown: assume the same ratio for each direction.
    share = exposed_ns / window_ns * to_device_ns / total_ns
    pageable = (pageable_ns or 0) / to_device_ns
    evidence = {"share": share, "copy_ns": copy_ns, "exposed_ns": exposed_ns, "pageable": pageable}
    evidence["window_ns"] = window_ns
    how, command = _PAGEABLE if pageable > 1 / 2 else _PINNED, "otel-mlperf kernels"
    return _finding(share, how, evidence, "", f"{command} {numbers.summary.short_id}")


def _by_sections(numbers: RunNumbers) -> list[Finding]:
    steps = numbers.summary.steps
    rows = [row for row in steps.rows if row.category == names.TRANSFER] if steps else []
    share = sum(row.share for row in rows if not row.beside)
    evidence = {"share": share, "transfer_ns": sum(row.mean_ns for row in rows if not row.beside)}
    command = f"otel-mlperf show {numbers.summary.short_id}"
    return _finding(share, _PINNED, evidence, rows[0].name if rows else "", command)


def _finding(
    share: float, how: str, evidence: dict[str, float], section: str, command: str
) -> list[Finding]:
    row = row_of("transfer")
    if not row.holds(share):
        return []
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=row.summary.format(value=share, how=how),
            action=row.action,
            evidence=evidence,
            where=Where(section=section),
            # Concurrent copies save the whole time, unless copies last longer than the other work.
            gain=Gain(low=share / 2, high=share),
            command=command,
        )
    ]


_MIN_INTERVALS: Final = 2
# Counts only the steps of ranks whose allocator requests memory in the later half of the run.
_REQUESTS: Final = """WITH read AS (
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
    """Return at most one finding, for the rank and device with most driver requests per step.

    The requests per step must exceed the threshold in each interval between two readings in the
    later half of the run.
    """
    row, figures = row_of("device_allocations"), numbers.summary.steps
    if figures is None:
        return []
    requests = numbers.store.rows(
        _REQUESTS,
        name=names.CUDA_DEVICE_ALLOCATIONS.name,
        device=label_path(names.DEVICE_INDEX),
        phase=figures.phase,
        fewest=_MIN_INTERVALS,
    )
    if not requests or not row.holds(requests[0][-1]):
        return []
    rank, index, times, steps, _ = requests[0]
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
