"""Step times of each epoch, and memory peaks up to the epoch's end.

An epoch's span contains the peaks that the process read at the epoch's end. Without such a span, a
peak is known only if readings shortly after the epoch's end are not higher in the next epoch than
before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.store.table_reader import Store


class EpochFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one epoch of a phase; of a repeated step, the last execution counts."""

    epoch: int
    steps: int
    """Steps of one rank."""
    steps_ns: float
    """Sum of the step durations, mean over the ranks."""
    total_ns: int
    """Time from the start of the first step to the end of the last one, over all ranks."""
    mean_ns: float
    """Mean duration of a step."""
    min_ns: int
    max_ns: int
    deviation_ns: float
    """Standard deviation of the step durations."""
    memory_peak_bytes: float | None
    """Peak resident memory of one process up to the epoch's end, as far as read by then."""
    cuda_peak_bytes: float | None
    """Peak memory that PyTorch's allocator had allocated on one device."""
    cuda_reserved_bytes: float | None
    """Peak memory that PyTorch's allocator had reserved on one device, in use or not."""


def _peak(name: str, attribute: str, state: str = "") -> str:
    """Return the SQL of a peak up to an epoch's end, from the epoch's span or unambiguous readings.

    ``name`` and ``attribute`` are the parameters with the names of the reading and of the span's
    attribute. The reading's labels must contain the text ``state``.
    """
    read = f"FROM readings WHERE name = ${name} AND contains(labels, '{state}')"
    before_next, later = (
        f"(SELECT max(value) {read} AND time_ns <= {until})"
        for until in ("least(end_ns + $late, coalesce(next_ns, end_ns + $late))", "end_ns + $late")
    )
    return (
        f"coalesce((SELECT max(json_extract(attributes, ${attribute})::DOUBLE) FROM spans "
        "WHERE category = $category AND json_extract(attributes, $number)::BIGINT = found.epoch), "
        f"CASE WHEN {before_next} = {later} THEN {later} END)"
    )


_EPOCHS: Final = f"""WITH last AS (
    SELECT * FROM steps WHERE phase = $phase AND epoch IS NOT NULL AND NOT error
    QUALIFY row_number() OVER (PARTITION BY rank, number ORDER BY restart DESC, n DESC) = 1
), found AS (
    SELECT epoch, count(DISTINCT number) AS steps, sum(duration_ns) / count(DISTINCT rank) AS spent,
           max(end_ns) - min(start_ns) AS total, avg(duration_ns) AS mean,
           min(duration_ns) AS least, max(duration_ns) AS most,
           stddev_pop(duration_ns) AS deviation, max(end_ns) AS end_ns,
           lead(min(start_ns)) OVER (ORDER BY min(start_ns)) AS next_ns
    FROM last GROUP BY epoch
)
SELECT epoch, steps, spent, total, mean, least, most, deviation,
    {_peak("memory", "of_memory")}, {_peak("cuda", "of_cuda", "allocated")},
    {_peak("cuda", "of_reserved", "reserved")}
FROM found ORDER BY epoch"""
_LATE_NS: Final = 5 * 10**9
"""Interval at which peaks are stored, so that an epoch's peak may be stored that late."""


def read_epochs(store: Store, phase: str | None) -> list[EpochFigures]:
    """Return the epochs of a phase in order; steps that do not report an epoch are ignored."""
    rows = store.rows(
        _EPOCHS,
        phase=phase,
        memory=names.RUN_MEMORY_PEAK.name,
        cuda=names.CUDA_MEMORY_PEAK_USAGE.name,
        late=_LATE_NS,
        category=names.EPOCH,
        number=f'$."{names.TRAINING_EPOCH}"',
        of_memory=f'$."{names.EPOCH_MEMORY_PEAK}"',
        of_cuda=f'$."{names.EPOCH_CUDA_PEAK}"',
        of_reserved=f'$."{names.EPOCH_CUDA_RESERVED}"',
    )
    return [
        EpochFigures(**dict(zip(EpochFigures.__struct_fields__, row, strict=True))) for row in rows
    ]
