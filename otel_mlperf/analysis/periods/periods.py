"""Steps, requests and resource use of a run by hours or other periods."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.periods.period_grid import lay_grid
from otel_mlperf.analysis.periods.period_shapes import Period, PeriodProcess, Periods, PeriodSteps
from otel_mlperf.analysis.run.run_processes import no_such_rank, read_processes
from otel_mlperf.analysis.steps.step_shares import CHOSEN, main_phase, per_second, read_warm_up
from otel_mlperf.analysis.summary.call_totals import read_requests_by_period
from otel_mlperf.analysis.summary.chosen_phase import chosen_phase
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.analysis.periods.period_grid import Grid
    from otel_mlperf.analysis.run.run_processes import Processes
    from otel_mlperf.store.run_folders import RunFolder


# The kernel's memory peak is attributed to the period in which an increase was read.
_USED: Final = """WITH read AS (
    SELECT name, labels, time_ns, value, value - lag(value) OVER series AS more,
        time_ns - lag(time_ns) OVER series AS held_ns
    FROM readings WHERE name = $peak OR (name IN ($cpu, $memory) AND contains(labels, $main))
    WINDOW series AS (PARTITION BY name, labels, rank, restart ORDER BY time_ns))
SELECT least(greatest((time_ns - $origin) // $every, 0), $last),
    sum(more) FILTER (name = $cpu) * 1e9 * count(DISTINCT labels) FILTER (name = $cpu)
        / nullif(sum(held_ns) FILTER (name = $cpu), 0),
    max(value) FILTER (name = $memory OR (name = $peak AND coalesce(more > 0, true)))::BIGINT
FROM read GROUP BY 1"""


def read_use_by_period(store: Store, grid: Grid) -> dict[int, PeriodProcess]:
    """Return resource use by period number, without periods that have no readings."""
    rows = store.rows(
        _USED,
        cpu=names.PROCESS_CPU_TIME.name,
        memory=names.PROCESS_MEMORY.name,
        peak=names.RUN_MEMORY_PEAK.name,
        main=json.dumps({names.PROCESS_ROLE: "main"})[1:-1],
        origin=grid.origin_ns,
        every=grid.every_ns,
        last=grid.periods - 1,
    )
    return {period: PeriodProcess(cpus=cpus, memory_peak_bytes=peak) for period, cpus, peak in rows}


def lived_by_period(processes: Processes, grid: Grid) -> list[int]:
    """Return, for each period, how many ns at least one process of the run existed."""
    lived = [0] * grid.periods
    until = grid.origin_ns
    for process in sorted(processes.all, key=lambda one: one.start_ns):
        begin, end = max(process.start_ns, until), processes.end_of(process)
        until = max(until, end)
        while begin < end:
            number = (begin - grid.origin_ns) // grid.every_ns
            upto = min(end, grid.begin_ns(number + 1))
            lived[number] += upto - begin
            begin = upto
    return lived


_STEPS: Final = f"""{CHOSEN}, ended AS (
    SELECT restart, n, bool_or(error) AS failed, sum(samples)::BIGINT AS samples,
        sum(tokens)::BIGINT AS tokens, (max(end_ns) - $origin) // $every AS period
    FROM steps WHERE phase = $phase GROUP BY restart, n
), waits AS (
    SELECT rank, restart, n, sum(self_ns) AS waited FROM sections
    WHERE phase = $phase AND n IS NOT NULL AND NOT beside AND category = $data GROUP BY ALL
), told AS (
    SELECT period, count(*) AS measured, sum(duration_ns)::BIGINT AS spent,
        avg(duration_ns) AS mean, quantile_disc(duration_ns, 0.5) AS p50,
        quantile_disc(duration_ns, 0.95) AS p95, quantile_disc(duration_ns, 0.99) AS p99,
        max(duration_ns) AS most, coalesce(sum(waited), 0)::BIGINT AS waited,
        {per_second("chosen.samples")} AS samples_per_s,
        {per_second("chosen.tokens")} AS tokens_per_s
    FROM chosen JOIN ended USING (restart, n) LEFT JOIN waits USING (rank, restart, n)
    GROUP BY period
), counts AS (
    SELECT period, count(*) AS count, count(*) FILTER (failed) AS failed,
        sum(samples)::BIGINT AS samples, sum(tokens)::BIGINT AS tokens
    FROM ended GROUP BY period
)
SELECT period, count, failed, samples, tokens, coalesce(measured, 0), coalesce(spent, 0), mean,
    p50, p95, p99, most, coalesce(waited, 0), waited / nullif(spent, 0), samples_per_s, tokens_per_s
FROM counts LEFT JOIN told USING (period)"""


def read_steps_by_period(store: Store, phase: str, grid: Grid) -> dict[int, PeriodSteps]:
    """Return step figures by period number, without periods in which no step ended."""
    rows = store.rows(
        _STEPS,
        phase=phase,
        first=1 if read_warm_up(store, phase) else 0,
        data=names.DATA_LOADING,
        origin=grid.origin_ns,
        every=grid.every_ns,
    )
    fields = PeriodSteps.__struct_fields__
    return {period: PeriodSteps(**dict(zip(fields, row, strict=True))) for period, *row in rows}


_NOT_READ: Final = PeriodProcess(cpus=None, memory_peak_bytes=None)


def read_periods(
    run: RunFolder, every_ns: int, rank: int | None = None, phase: str | None = None
) -> Periods:
    """Return the stored figures of a run for each period of ``every_ns``, a multiple of a minute.

    If ``rank`` is None, all ranks are included. ``phase`` selects the steps of one phase, or the
    requests; if it is None, the steps of the main phase and the requests are included.

    Raises:
        NoSuchRun: no process of rank ``rank`` is known.
        NoSuchPhase: the run has no steps of phase ``phase``, or no requests.
        UsageError: there are too many periods.
        StoreError: a file of the run cannot be read.
    """
    store = Store(run.path, rank)
    processes = read_processes(store)
    if rank is not None and not processes.all:
        raise no_such_rank(run, rank)
    of_steps = main_phase(store) if phase is None else chosen_phase(run, store, phase)
    grid = lay_grid(*_bounds(store, processes, run.facts.started_ns), every_ns)
    steps = read_steps_by_period(store, of_steps, grid) if of_steps else {}
    # If a phase is requested, requests are excluded, because they belong to no phase.
    has_requests = phase is None or of_steps is None
    requests = read_requests_by_period(store, grid.origin_ns, every_ns) if has_requests else {}
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
    ((first, last),) = store.rows(
        "SELECT min(t), max(t) FROM (SELECT end_ns AS t FROM steps UNION ALL "
        "SELECT minute_ns FROM durations)"
    )
    ends = [processes.end_of(process) - 1 for process in processes.all]
    moments = [process.start_ns for process in processes.all] or [started_ns]
    known = [moment for moment in (*moments, *ends, first, last) if moment is not None]
    return min(known), max(known)
