"""Table of findings: all conditions, with their thresholds and recommended actions.

The agent evaluates the table's rules during a run, finished runs are evaluated with the table, and
Prometheus alert rules are generated from it. Thresholds are stored nowhere else.
"""

from __future__ import annotations

from typing import Final

from otel_mlperf.findings.compute_rows import COMPUTE_ROWS, SAMPLED_ROWS
from otel_mlperf.findings.finding_row import FindingRow, Rule
from otel_mlperf.findings.gpu_rows import GPU_ROWS
from otel_mlperf.findings.host_rows import CONTENTION_ROWS, HOST_ROWS
from otel_mlperf.findings.loading_rows import LOADING_ROWS
from otel_mlperf.findings.rank_rows import RANK_ROWS
from otel_mlperf.findings.run_rows import RECORDING_ROWS, RUN_ROWS
from otel_mlperf.findings.step_rows import PATTERN_ROWS, TRAINING_ROWS

TABLE: Final[tuple[FindingRow, ...]] = (
    *HOST_ROWS,
    *TRAINING_ROWS,
    *RANK_ROWS,
    *LOADING_ROWS,
    *PATTERN_ROWS,
    *CONTENTION_ROWS,
    *RUN_ROWS,
    *SAMPLED_ROWS,
    *COMPUTE_ROWS,
    *GPU_ROWS,
    *RECORDING_ROWS,
)

# The order matters: warnings that start at the same time are reported in this order.
RULES: Final[tuple[Rule, ...]] = tuple(row for row in TABLE if isinstance(row, Rule))
"""Rows that are evaluated during a run."""


def row_of(id: str) -> FindingRow:
    """Return the row with the id ``id``.

    Raises:
        KeyError: no row has this id.
    """
    return _BY_ID[id]


_BY_ID: Final = {row.id: row for row in TABLE}
