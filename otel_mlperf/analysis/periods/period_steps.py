"""What do the steps that ended in each period come to?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.periods.period_shapes import PeriodSteps
from otel_mlperf.analysis.steps.step_shares import CHOSEN, per_second, read_warm_up

if TYPE_CHECKING:
    from otel_mlperf.analysis.periods.period_grid import Grid
    from otel_mlperf.store.table_reader import Store

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
    """By number of the period; those in which no step ended are not there."""
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
