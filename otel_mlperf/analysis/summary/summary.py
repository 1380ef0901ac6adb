"""Summary of a run, exact for the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.analysis.profiles.recorded_windows import (
    find_unread,
    read_left_out,
    read_unknown_rows,
)
from otel_mlperf.analysis.run import item_accounts
from otel_mlperf.analysis.run.run_processes import (
    IMPORTED,
    RUNNING,
    Processes,
    no_such_rank,
    read_processes,
)
from otel_mlperf.analysis.steps.rank_differences import stand_outs
from otel_mlperf.analysis.steps.step_shares import (
    count_profiled,
    last_step,
    main_phase,
    read_slowest,
    read_steps,
    read_warm_up,
)
from otel_mlperf.analysis.summary.call_totals import read_calls, read_section_uses
from otel_mlperf.analysis.summary.chosen_phase import chosen_phase
from otel_mlperf.analysis.summary.epoch_figures import read_epochs
from otel_mlperf.analysis.summary.goodput import read_ledger
from otel_mlperf.analysis.summary.gpu_use import read_steps_on_gpu
from otel_mlperf.analysis.summary.loader_use import read_loaders
from otel_mlperf.analysis.summary.logged import add_up, read_last, read_series
from otel_mlperf.analysis.summary.machine_use import read_losses, read_machine, read_process_use
from otel_mlperf.analysis.summary.marked_points import read_marks
from otel_mlperf.analysis.summary.outside_time import (
    concurrent_sections,
    outside_ns,
    outside_steps,
    read_aggregates,
    read_left_open,
    read_nodes,
    read_tree,
    with_concurrent_rows,
)
from otel_mlperf.analysis.summary.progress import read_progress
from otel_mlperf.analysis.summary.summary_shapes import AsOf, CheckpointTotal, Summary, Telemetry
from otel_mlperf.analysis.summary.work_figures import read_work
from otel_mlperf.run_files import hot_file
from otel_mlperf.store.parts import read_as_of
from otel_mlperf.store.table_reader import Store, label_path

if TYPE_CHECKING:
    from otel_mlperf.analysis.run.run_processes import Failure
    from otel_mlperf.analysis.steps.step_shapes import Slowest, StepFigures, WarmUp
    from otel_mlperf.names import Metric
    from otel_mlperf.store.run_folders import RunFolder


# Totals only increase: the maximum of each process is its last value.
_TOTALS: Final = """SELECT labels ->> $direction AS direction,
    sum(most) FILTER (name = $bytes)::BIGINT, sum(most) FILTER (name = $time)
FROM (
    SELECT name, labels, max(value) AS most FROM readings
    WHERE name IN ($bytes, $time) GROUP BY name, labels, rank, restart
) GROUP BY direction ORDER BY direction DESC"""


def read_checkpoints(store: Store) -> list[CheckpointTotal]:
    """Return the totals of checkpoint writes, then of reads, over all calls of known size."""
    return _read(store, names.CHECKPOINT_DIRECTION, names.CHECKPOINT_IO, names.CHECKPOINT_IO_TIME)


def read_files(store: Store) -> list[CheckpointTotal]:
    """Return the totals of writes, then of reads, of all files opened while files were watched."""
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


def summarize(
    run: RunFolder,
    rank: int | None = None,
    store: Store | None = None,
    phase: str | None = None,
) -> Summary:
    """Return the summary of a run, finished or not; its ``findings`` are empty.

    Args:
        run: the run.
        rank: the only rank of the figures; None: all ranks.
        store: the tables of ``rank``; None if the caller has not opened a store.
        phase: phase of the steps, or ``request`` for requests (default: training, else the phase
            that started first).

    Raises:
        NoSuchRun: no process of rank ``rank`` is known.
        NoSuchPhase: the run has no steps of phase ``phase``, or no requests if it is ``request``.
        StoreError: a file of the run cannot be read.
    """
    store = store or Store(run.path, rank)
    processes = read_processes(store)
    if rank is not None and not processes.all:
        raise no_such_rank(run, rank)
    calls, nodes, aggregates = read_calls(store), read_nodes(store), read_aggregates(store)
    is_main = phase is None
    phase = main_phase(store) if phase is None else chosen_phase(run, store, phase)
    only_requests = phase is None and not is_main
    uses = read_section_uses(store)
    if only_requests:
        calls = [call for call in calls if call.category == names.REQUEST]
        uses = [use for use in uses if not use.in_step]
    elif not is_main:
        calls = [call for call in calls if call.in_step and call.phase == phase]
        uses = [use for use in uses if use.in_step and use.phase == phase]
        aggregates = [added for added in aggregates if added.phase == phase]
    steps = warm_up = slowest = None
    outside, beside, beyond = [], [], 0.0
    if phase is not None:
        steps, warm_up = _steps_of(store, phase)
        slowest = read_slowest(store, steps, warm_up)
        steps = with_concurrent_rows(store, steps, nodes)
        beyond = outside_ns(store, phase, processes)
        outside = outside_steps(store, nodes, phase, processes, beyond)
        beside = concurrent_sections(nodes, processes)
    failure, telemetry = processes.failure(), _telemetry(run, processes)
    series = read_series(store)
    return Summary(
        id=run.facts.id,
        short_id=run.short_id,
        name=run.facts.name,
        path=str(run.path),
        outcome=processes.outcome,
        restarts=max((process.restart for process in processes.all), default=0),
        rank=rank,
        ranks=processes.ranks,
        world_size=max([run.facts.world_size, *(process.world_size for process in processes.all)]),
        nodes=processes.nodes,
        started_ns=run.facts.started_ns,
        duration_ns=processes.duration_ns,
        has_gpu=any(process.has_gpu for process in processes.all),
        failure=failure,
        integrations=run.facts.integrations,
        params=run.facts.params,
        result=processes.result(),
        last=read_last(store),
        counted=add_up(series),
        series=series,
        steps=steps,
        warm_up=warm_up,
        outside_ns=beyond,
        outside_share=beyond * processes.ranks / processes.busy_ns if processes.busy_ns else 0.0,
        outside=outside,
        beside=beside,
        checkpoints=read_checkpoints(store),
        files=read_files(store),
        left_open=read_left_open(store),
        slowest=slowest,
        machine=read_machine(store),
        process=read_process_use(store, processes),
        used=uses,
        gpu=read_steps_on_gpu(store, phase, warm_up) if phase else None,
        loaders=read_loaders(store),
        ledger=read_ledger(store, processes),
        progress=read_progress(store) if processes.outcome == RUNNING else None,
        epochs=read_epochs(store, phase),
        marks=read_marks(store, run.facts.started_ns),
        calls=calls,
        work=read_work(store, phase, warm_up),
        losses=read_losses(store, run.facts.started_ns),
        windows=_count_windows(run, store, rank),
        windows_left_out=read_left_out(store),
        unknown_rows=read_unknown_rows(store),
        profiled_steps=count_profiled(store, phase),
        # The tree replaces the table of one step in a run without steps.
        tree=[] if steps or only_requests else read_tree(nodes, processes),
        aggregates=aggregates,
        telemetry=telemetry,
        as_of=_as_of(run, store, processes, phase),
        next=_next(run, processes.outcome, failure, slowest, telemetry),
    )


def _as_of(run: RunFolder, store: Store, processes: Processes, phase: str | None) -> AsOf | None:
    """Return the time up to which all figures are complete; None if unknown.

    While processes are running, the agents on their hosts determine that time. Afterwards, the
    run's end is returned.
    """
    hosts = {process.host for process in processes.last_of_rank if process.outcome == RUNNING}
    times = [read_as_of(run.path, host) for host in hosts] or [processes.end_ns]
    known = [time_ns for time_ns in times if time_ns is not None]
    if len(known) < len(times) or not processes.all:
        return None
    return AsOf(time_ns=min(known), step=last_step(store, phase))


def _steps_of(store: Store, phase: str) -> tuple[StepFigures, WarmUp | None]:
    warm_up = read_warm_up(store, phase)
    steps = read_steps(store, phase, warm_up)
    return replace(steps, stand_outs=stand_outs(steps.ranks, steps.mean_ns)), warm_up


def _count_windows(run: RunFolder, store: Store, rank: int | None) -> int:
    """Return the number of profiler windows, including imported windows and those not yet read."""
    ((read,),) = store.rows("SELECT count(*) FROM windows")
    return int(read) + len(find_unread(run, store, rank))


def _telemetry(run: RunFolder, processes: Processes) -> Telemetry:
    accounts = item_accounts.read_accounts(run.path)
    overhead = sum(process.overhead_ns for process in processes.all)
    is_recorded = processes.busy_ns and processes.outcome != IMPORTED
    return Telemetry(
        lost=item_accounts.lost(accounts) if accounts else None,
        pending=item_accounts.pending(accounts),
        sections_lost=item_accounts.sections_lost(accounts),
        overhead=overhead / processes.busy_ns if is_recorded else None,
    )


def _next(
    run: RunFolder,
    outcome: str,
    failure: Failure | None,
    slowest: Slowest | None,
    telemetry: Telemetry,
) -> str:
    short_id = run.short_id
    if outcome == IMPORTED:
        return f"otel-mlperf kernels {short_id}"
    # Must be checked first: otherwise figures of incomplete data could mislead.
    if telemetry.lost:
        return f"otel-mlperf doctor {short_id}"
    if failure is not None and failure.step is not None:
        return f"otel-mlperf show {short_id} --step {failure.step}"
    if slowest is not None:
        kept = slowest.number if slowest.kept_number is None else slowest.kept_number
        return f"otel-mlperf show {short_id} --step {kept}"
    if any((run.path / hot_file.FOLDER).glob("*.jsonl")):
        return f"otel-mlperf summary {short_id} --functions"
    return f"otel-mlperf {'summary' if outcome == RUNNING else 'doctor'} {short_id}"
