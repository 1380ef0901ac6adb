"""Does the memory of a training process grow for as long as it runs?

A line through the resident memory of the last two thirds of the run, from the end of its first step
on: what is set up and warmed up lies before. It must explain nearly all of what is read (r²), the
more so the fewer readings there are: steps, saws and noise are no growth.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.findings.finding import Finding, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.store.table_reader import Store

_ROW: Final = row_of("memory_growth")
_MAIN: Final = "main"
_FEWEST: Final = 4
"""Readings from which on a line is one."""
_FEW: Final = 8
_STRAIGHT: Final = 0.9
_STRAIGHT_OF_FEW: Final = 0.97
"""Through a jump between two of four readings there is a line that explains 0.8 of them."""
_MINUTE_S: Final = 60.0
_LEAST_BYTES: Final = 32 << 20
"""A small process may grow by a fifth for good reasons."""
_GROWTH: Final = """WITH read AS (
    SELECT rank, restart, time_ns, sum(value) AS bytes FROM readings
    WHERE name = $name AND list_contains($labels, labels) GROUP BY ALL),
bounds AS (
    SELECT rank, restart, min(time_ns) AS first, max(time_ns) AS last FROM read GROUP BY ALL),
begun AS (SELECT rank, restart, min(end_ns) AS began FROM steps GROUP BY ALL),
late AS (SELECT read.*, (time_ns - first) / 1e9 AS at_s
    FROM read JOIN bounds USING (rank, restart) LEFT JOIN begun USING (rank, restart)
    WHERE time_ns >= greatest(first + (last - first) / 3, coalesce(began, 0)))
SELECT rank, regr_slope(bytes, at_s), regr_r2(bytes, at_s), max(at_s) - min(at_s),
    regr_intercept(bytes, at_s) + regr_slope(bytes, at_s) * min(at_s), count(*)
FROM late GROUP BY rank, restart HAVING count(*) >= $fewest ORDER BY rank, restart"""


def find_memory_growth(numbers: RunNumbers) -> list[Finding]:
    """One for each rank whose process grows by more than the row's share of what it was."""
    found = {}
    for rank, slope, straight, over_s, before, readings in numbers.store.rows(
        _GROWTH,
        name=names.PROCESS_MEMORY.name,
        labels=_of_main(numbers.store),
        fewest=_FEWEST,
    ):
        enough = _STRAIGHT if readings >= _FEW else _STRAIGHT_OF_FEW
        if slope is not None and before is not None and (straight or 0.0) >= enough:
            grown = slope * over_s
            if before > 0 and grown >= _LEAST_BYTES and _ROW.holds(grown / before):
                found[rank] = _finding(rank, grown, before, over_s, straight)
    return [*found.values()]


def _of_main(store: Store) -> list[str]:
    """The labels of the training processes themselves: workers come and go."""
    known = store.rows(
        "SELECT DISTINCT labels FROM readings WHERE name = $name", name=names.PROCESS_MEMORY.name
    )
    return [text for (text,) in known if json.loads(text).get(names.PROCESS_ROLE) == _MAIN]


def _finding(rank: int, grown: float, before: float, over_s: float, straight: float) -> Finding:
    time = f"{over_s:.0f} s" if over_s < 2 * _MINUTE_S else f"{over_s / _MINUTE_S:.0f} min"
    words = {"grown": f"{grown / 2**20:,.0f} MiB", "value": grown / before, "time": time}
    return Finding(
        id=_ROW.id,
        severity=_ROW.severity,
        summary=_ROW.summary.format(**words),
        action=_ROW.action,
        evidence={
            "bytes_per_s": grown / over_s,
            "grown_bytes": grown,
            "before_bytes": before,
            "r_squared": straight,
        },
        where=Where(rank=rank),
    )
