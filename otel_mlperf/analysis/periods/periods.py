"""What did a run do in each hour: how many steps and requests, how long, with what?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.periods.period_grid import lay_grid
from otel_mlperf.analysis.periods.period_readings import lived_by_period, read_use_by_period
from otel_mlperf.analysis.periods.period_shapes import Period, PeriodProcess, Periods
from otel_mlperf.analysis.periods.period_steps import read_steps_by_period
from otel_mlperf.analysis.run.run_processes import no_such_rank, read_processes
from otel_mlperf.analysis.steps.step_shares import main_phase
from otel_mlperf.analysis.summary.call_durations import read_requests_by_period
from otel_mlperf.analysis.summary.chosen_phase import chosen_phase
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.analysis.run.run_processes import Processes
    from otel_mlperf.store.run_folders import RunFolder

_NOT_READ: Final = PeriodProcess(cpus=None, memory_peak_bytes=None)


def read_periods(
    run: RunFolder, every_ns: int, rank: int | None = None, phase: str | None = None
) -> Periods:
    """What is stored of the run, cut into periods of ``every_ns``; whole minutes.

    Raises:
        NoSuchRun: no process of that rank is known.
        NoSuchPhase: the run has no steps of that phase, or no requests.
        UsageError: these are too many periods.
        StoreError: a file of the run cannot be read.
    """
    store = Store(run.path, rank)
    processes = read_processes(store)
    if rank is not None and not processes.all:
        raise no_such_rank(run, rank)
    of_steps = main_phase(store) if phase is None else chosen_phase(run, store, phase)
    grid = lay_grid(*_bounds(store, processes, run.facts.started_ns), every_ns)
    steps = read_steps_by_period(store, of_steps, grid) if of_steps else {}
    # Those of a phase are asked for: requests are in none.
    is_told = phase is None or of_steps is None
    requests = read_requests_by_period(store, grid.origin_ns, every_ns) if is_told else {}
    undated = requests.pop(None, [])
    used, lived = read_use_by_period(store, grid), lived_by_period(processes, grid)
    return Periods(
        id=run.facts.id,
        short_id=run.short_id,
        name=run.facts.name,
        outcome=processes.outcome,
        rank=rank,
        phase=of_steps,
        every_ns=every_ns,
        utc_offset_s=grid.utc_offset_s,
        periods=[
            Period(
                start_ns=grid.begin_ns(number),
                end_ns=grid.begin_ns(number + 1),
                lived_ns=lived[number],
                steps=steps.get(number),
                requests=requests.get(number, []),
                process=used.get(number, _NOT_READ),
            )
            for number in range(grid.periods)
        ],
        undated_requests=sum(one.count for one in undated),
        missing=[],
    )


def _bounds(store: Store, processes: Processes, started_ns: int) -> tuple[int, int]:
    """The first and the last moment that anything is known of."""
    ((first, last),) = store.rows(
        "SELECT min(t), max(t) FROM (SELECT end_ns AS t FROM steps UNION ALL "
        "SELECT minute_ns FROM durations)"
    )
    ends = [processes.end_of(process) - 1 for process in processes.all]
    moments = [process.start_ns for process in processes.all] or [started_ns]
    known = [moment for moment in (*moments, *ends, first, last) if moment is not None]
    return min(known), max(known)
