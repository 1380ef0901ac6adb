"""Target run of an imported trace, existing or new, and the run's rows of table ``processes``.

An import only adds to a recorded run. A run that an import created has no recorded processes: each
rank gets a process row that is derived from its traces.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mlperf.errors import JournalError, NoSuchRun, StoreError
from otel_mlperf.journal.profiler_windows import (
    FOLDER,
    TRACE_SUFFIX,
    WINDOW_SUFFIX,
    Window,
    read_window,
)
from otel_mlperf.store.run_folders import LATEST, find_run, list_runs, read_run, runs_dir

if TYPE_CHECKING:
    from otel_mlperf.kineto.convert import Conversion
    from otel_mlperf.store.run_folders import RunFolder

TAG: Final = "imported"
"""Tag of a run that an import created."""


def find_or_none(name: str) -> RunFolder | None:
    """Return the run with this name, id or path; None if ``name`` can be the name of a new run.

    Raises:
        NoSuchRun: no run exists for ``latest`` or at the path, or the id prefix is ambiguous.
        StoreError: the run cannot be read.
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
    """Return the run that recorded the trace, and the trace's window; if unknown, ``(run, None)``.

    ``run`` is the requested run (None: any). If ``is_new``, the requested run does not exist yet,
    so it cannot have recorded the trace.
    """
    if is_new or not trace.is_file():
        return run, None  # A missing file is reported later, when it is read.
    # A recorded window is converted with the agent's budget and parents. The agent and the import
    # then create the same ids, so a second delivery adds nothing new.
    place = trace.with_name(trace.name.removesuffix(TRACE_SUFFIX) + WINDOW_SUFFIX)
    try:
        window = read_window(place)
        owner = run or read_run(_run_of(trace))
    except (JournalError, StoreError):
        return run, None
    is_its = window.run_id == owner.facts.id and window.trace == trace.name
    return (owner, window) if is_its else (run, None)


def _run_of(trace: Path) -> Path:
    folder = trace.resolve().parent
    return folder.parent if folder.name == FOLDER else folder


def make_run(name: str, run_id: str, converted: Conversion) -> RunFolder:
    """Create a run folder for the imported trace ``converted``, and return the run.

    Raises:
        ConfigError: the folder cannot be created.
    """
    from otel_mlperf.recorder.lifecycle.run_folder import prepare_folder

    facts = {"params": {}, "tags": [TAG], "world_size": converted.trace.world_size or 1}
    return read_run(Path(prepare_folder(str(runs_dir()), run_id, name, facts)))


def is_made(run: RunFolder) -> bool:
    """Return whether an import created the run and no program has recorded into it since."""
    return TAG in run.facts.tags and not (run.path / "starts").exists()


def write_process(run: RunFolder, converted: Conversion) -> None:
    """Write the process row of a trace's rank, for the time range of all the rank's windows.

    Raises:
        StoreError: the row cannot be written to disk.
    """
    from otel_mlperf.analysis.run.run_processes import IMPORTED
    from otel_mlperf.store.part_writer import write_part
    from otel_mlperf.store.table_reader import Store
    from otel_mlperf.tables.row import transposed
    from otel_mlperf.tables.run_tables import ProcessRow

    trace, numbers = converted.trace, converted.numbers
    ((start, end),) = Store(run.path, converted.rank).rows(
        "SELECT min(start_ns), max(end_ns) FROM windows WHERE is_unix_time = $is_unix_time",
        is_unix_time=trace.is_unix_time,
    )
    host = trace.header.get("host_name")
    row = ProcessRow(
        rank=converted.rank,
        restart=0,
        local_rank=converted.rank,
        world_size=trace.world_size or 1,
        pid=0,
        host=host if isinstance(host, str) else "",
        service=run.facts.name,
        start_ns=start,
        end_ns=end,
        outcome=IMPORTED,
        error_type="",
        error_message="",
        error_step=None,
        error_section="",
        result="{}",
        sections=0,
        overhead_ns=0,
        instance_id=str(uuid.uuid5(uuid.NAMESPACE_OID, trace.digest)),
        has_gpu=bool(numbers.devices),
    )
    columns = transposed(ProcessRow, [row])
    write_part(run.path, "processes", f"imported-{converted.rank}", 1, columns)


def find_mismatch(run: RunFolder, converted: Conversion) -> str:
    """Return why a trace seems to belong to another run; empty if the trace fits the run."""
    from otel_mlperf.store.table_reader import Store

    # A window names its run, and a run created by an import accepts any trace.
    if converted.window is not None or is_made(run):
        return ""
    rows = Store(run.path).rows("SELECT DISTINCT rank FROM processes ORDER BY rank")
    ranks = [rank for (rank,) in rows]
    size, of = converted.trace.world_size, run.facts.world_size
    if ranks and converted.rank not in ranks:
        return f"the run has no rank {converted.rank}: the trace is included in totals of `kernels`"
    if size is not None and size != of:
        return f"trace of a job with {size} ranks (this run: {of}): included in totals of `kernels`"
    return ""
