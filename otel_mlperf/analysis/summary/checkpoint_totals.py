"""How many bytes of checkpoints, and of files that were watched, did a run write and read?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.summary.summary_shapes import CheckpointTotal
from otel_mlperf.store.table_reader import label_path

if TYPE_CHECKING:
    from otel_mlperf.names import Metric
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
    return _read(store, names.CHECKPOINT_DIRECTION, names.CHECKPOINT_IO, names.CHECKPOINT_IO_TIME)


def read_files(store: Store) -> list[CheckpointTotal]:
    """The same of files that were opened while files were watched."""
    return _read(store, names.DISK_DIRECTION, names.FILE_IO, names.FILE_IO_TIME)


def _read(store: Store, label: str, size: Metric, time: Metric) -> list[CheckpointTotal]:
    rows = store.rows(_TOTALS, direction=label_path(label), bytes=size.name, time=time.name)
    return [
        CheckpointTotal(
            direction=direction, bytes=moved, time_ns=time_s * 1e9, bytes_per_s=moved / time_s
        )
        for direction, moved, time_s in rows
        if moved and time_s
    ]
