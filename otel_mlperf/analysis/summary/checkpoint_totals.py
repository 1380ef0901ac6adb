"""How many bytes of checkpoints did a run write and read, and how fast?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.summary.summary_shapes import CheckpointTotal

if TYPE_CHECKING:
    from otel_mlperf.store.table_reader import Store

# A total only grows: the largest of a process is its last.
_TOTALS: Final = """SELECT labels ->> $direction AS direction,
    sum(most) FILTER (name = $bytes)::BIGINT, sum(most) FILTER (name = $time)
FROM (
    SELECT name, labels, max(value) AS most FROM readings
    WHERE name IN ($bytes, $time) GROUP BY name, labels, rank, restart
) GROUP BY direction ORDER BY direction DESC"""


def read_checkpoints(store: Store) -> list[CheckpointTotal]:
    """What all ranks wrote, then what they read, of calls whose size is known; exact."""
    rows = store.rows(
        _TOTALS,
        direction=f'$."{names.CHECKPOINT_DIRECTION}"',
        bytes=names.CHECKPOINT_IO.name,
        time=names.CHECKPOINT_IO_TIME.name,
    )
    return [
        CheckpointTotal(
            direction=direction, bytes=size, time_ns=time_s * 1e9, bytes_per_s=size / time_s
        )
        for direction, size, time_s in rows
        if size and time_s
    ]
