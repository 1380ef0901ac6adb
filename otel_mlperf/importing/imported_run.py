"""Target run of an imported trace: the run that owns it, or a new one, with its process row.

An import only adds to a recorded run. In a run that an import created, nothing else records its
participants: each rank gets a row of its own, derived from its traces.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.errors import JournalError, NoSuchRun, StoreError
from otel_mlperf.journal.window import FOLDER, TRACE_SUFFIX, WINDOW_SUFFIX, Window, read_window
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


def belongs_to(
    trace: Path, run: RunFolder | None, *, is_new: bool
) -> tuple[RunFolder | None, Window | None]:
    """The run whose window a trace is, with the window; else the ``run`` that was asked for.

    ``is_new``: the run that was asked for is yet to be made, so that no trace is a window of it.
    """
    if is_new or not trace.is_file():
        return run, None  # reading what is no file says what it is
    # The same window as the agent would convert it: with its budget and parents, so that both
    # make the same ids, and whoever comes second sends nothing new.
    place = trace.with_name(trace.name.removesuffix(TRACE_SUFFIX) + WINDOW_SUFFIX)
    try:
        window = read_window(place)
        owner = run or read_run(_run_of(trace))
    except (JournalError, StoreError):
        return run, None
    is_its = window.run_id == owner.facts.id and window.trace == trace.name
    return (owner, window) if is_its else (run, None)


def _run_of(trace: Path) -> Path:
    """The run folder in whose folder of windows a trace lies; itself where it lies in none."""
    folder = trace.resolve().parent
    return folder.parent if folder.name == FOLDER else folder


def make_run(name: str, run_id: str, converted: Conversion) -> RunFolder:
    """A run for traces from elsewhere.

    Raises:
        ConfigError: its folder cannot be created.
    """
    from otel_mlperf.recorder.lifecycle.run_folder import prepare_folder

    facts = {"params": {}, "tags": [TAG], "world_size": converted.trace.world_size or 1}
    return read_run(Path(prepare_folder(str(runs_dir()), run_id, name, facts)))


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

    # A window says whose it is, and into a run that an import has made anything may go.
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
