"""Time of each epoch, and the peaks of memory up to its end.

An epoch's span contains the peaks that its process read at the epoch's end. Without such a span the
peaks are known only if no later reading, which includes the next epoch, is higher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.store.table_reader import Store


class EpochFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch of a phase's steps; of several ranks and restarts the last one of each step."""

    epoch: int
    steps: int
    """Steps of one rank."""
    steps_ns: float
    """Their time, mean over the ranks."""
    total_ns: int
    """From the begin of its first step to the end of its last one, over all ranks."""
    mean_ns: float
    """Of a step."""
    min_ns: int
    max_ns: int
    deviation_ns: float
    """Standard deviation of its steps."""
    memory_peak_bytes: float | None
    """The most resident memory of one process up to its end, as far as it was read by then."""
    cuda_peak_bytes: float | None
    """The same of what PyTorch's allocator had given out on one device."""
    cuda_reserved_bytes: float | None
    """The same of what it held there, in use or not."""


def _peak(name: str, attribute: str, state: str = "") -> str:
    """SQL of a peak up to an epoch's end: of its spans, else of readings on which both sides agree.

    Args:
        name: parameter with the name of the reading.
        attribute: parameter with that of the span's attribute.
        state: a word among the reading's labels.
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
"""Peaks are stored so often."""


def read_epochs(store: Store, phase: str | None) -> list[EpochFigures]:
    """The epochs of the phase's steps that say theirs, in order."""
    rows = store.rows(
        _EPOCHS,
        phase=phase,
        memory=names.RUN_MEMORY_PEAK.name,
        cuda=names.CUDA_MEMORY_MOST.name,
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
