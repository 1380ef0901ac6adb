"""Which run does an import put its traces into, and what does it say of their processes there?

A run that was recorded is only added to. One that an import made has nothing else that could tell
who took part in it: each rank gets a row of its own, from its traces.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.errors import NoSuchRun
from otel_mlperf.store.run_folders import LATEST, find_run, list_runs, read_run, runs_dir

if TYPE_CHECKING:
    from otel_mlperf.kineto.convert import Conversion
    from otel_mlperf.store.run_folders import RunFolder

TAG: Final = "imported"
"""Of a run that an import has made."""


def find_or_none(name: str) -> RunFolder | None:
    """The run of that name, id or path; None where one of that name may be made.

    Raises:
        NoSuchRun: ``latest`` of none, a path that is no run's, or several ids begin like that.
        StoreError: it cannot be read.
    """
    try:
        return find_run(name)
    except NoSuchRun:
        is_path = os.sep in name or os.path.exists(name)
        begins = any(run.facts.id.startswith(name) for run in list_runs(runs_dir()))
        if name == LATEST or is_path or begins:
            raise
        return None


def make_run(name: str, converted: Conversion) -> RunFolder:
    """A run for traces from elsewhere.

    Raises:
        ConfigError: its folder cannot be created.
    """
    from otel_mlperf.recorder.lifecycle.run_folder import prepare_folder

    facts = {"params": {}, "tags": [TAG], "world_size": converted.trace.world_size or 1}
    return read_run(Path(prepare_folder(str(runs_dir()), os.urandom(16).hex(), name, facts)))


def is_made(run: RunFolder) -> bool:
    """Whether an import has made the run, and nobody has recorded into it since."""
    return TAG in run.facts.tags and not (run.path / "starts").exists()


def write_process(run: RunFolder, converted: Conversion) -> None:
    """The row of a trace's rank: from the first to the last that its traces tell.

    Raises:
        StoreError: the disk refuses.
    """
    from otel_mlperf.analysis.run.run_processes import IMPORTED
    from otel_mlperf.store.part_writer import write_part
    from otel_mlperf.store.table_reader import Store

    trace, numbers = converted.trace, converted.numbers
    ((start, end),) = Store(run.path, converted.rank).rows(
        "SELECT min(start_ns), max(end_ns) FROM windows WHERE is_unix_time = $is_unix_time",
        is_unix_time=trace.is_unix_time,
    )
    host = trace.header.get("host_name")
    row: dict[str, Any] = {
        "rank": converted.rank,
        "restart": 0,
        "local_rank": converted.rank,
        "world_size": trace.world_size or 1,
        "pid": 0,
        "host": host if isinstance(host, str) else "",
        "service": run.facts.name,
        "start_ns": start,
        "end_ns": end,
        "outcome": IMPORTED,
        "error_type": "",
        "error_message": "",
        "error_section": "",
        "result": "{}",
        "sections": 0,
        "overhead_ns": 0,
        "instance_id": str(uuid.uuid5(uuid.NAMESPACE_OID, trace.digest)),
        "has_gpu": bool(numbers.devices),
    }
    columns = {name: [value] for name, value in row.items()}
    write_part(run.path, "processes", f"imported-{converted.rank}", 1, columns)


def strangeness(run: RunFolder, converted: Conversion) -> str:
    """What makes a trace look as if it were of another run; empty if nothing does."""
    from otel_mlperf.store.table_reader import Store

    if converted.window is not None or is_made(run):
        return ""
    rows = Store(run.path).rows("SELECT DISTINCT rank FROM processes ORDER BY rank")
    ranks = [rank for (rank,) in rows]
    size, of = converted.trace.world_size, run.facts.world_size
    if ranks and converted.rank not in ranks:
        return f"rank {converted.rank} is not a rank of this run: kernels adds it to the others"
    if size is not None and size != of:
        return f"it is of {size} ranks and this run of {of}: kernels adds it to the others"
    return ""
