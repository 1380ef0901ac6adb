"""Does much of the run pass between its steps, where nothing that is recorded says what it is?

At the end of an epoch a loop counts, draws or reads again what it needs for the next one. What is
in a section there has a row or a finding of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.findings.checkpoint_gaps import (
    GAPS,
    MOST_RANKS,
    time_around_checkpoints_ns,
)
from otel_mlperf.analysis.findings.stack_lines import costliest_outside, ending_with
from otel_mlperf.analysis.steps.step_shares import NOT_IN_A_SPAN
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

_FEWEST: Final = 10
"""Steps from which on a share of the run is no accident of the first."""
_LEAST_NS: Final = 1_000_000
"""A gap that is shorter is what every loop has."""
_LONG: Final = f"""WITH {GAPS}
    SELECT count(*), coalesce(sum(b - a), 0) FROM gaps WHERE b - a > $least"""


def find_between_steps(numbers: RunNumbers) -> list[Finding]:
    """One, if more than the row's share of the run is in no section and between two steps."""
    summary, row = numbers.summary, row_of("uncovered")
    steps = summary.steps
    if steps is None or steps.count < _FEWEST or not summary.duration_ns:
        return []
    left = sum(one.sum_ns for one in summary.outside if one.name == NOT_IN_A_SPAN)
    if not row.holds(left / summary.duration_ns):
        return []
    ((count, gaps_ns),) = numbers.store.rows(
        _LONG, phase=steps.phase, least=_LEAST_NS, ranks=MOST_RANKS
    )
    ranks = min(summary.ranks, MOST_RANKS)
    spent = min(left, float(gaps_ns) / ranks) - time_around_checkpoints_ns(numbers)
    share = spent / summary.duration_ns
    if not count or not row.holds(share):
        return []
    times = max(1, round(count / ranks))
    each = f"{times} times {spent / times / 1e9:.2f} s" if times > 1 else f"{spent / 1e9:.2f} s"
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=f"{share:.0%} of the run is between two steps and in no section: {each}"
            + ending_with(*costliest_outside(numbers, names.STACK_SAMPLES_BETWEEN)),
            action=(
                "Look at what the loop does there, such as at the end of an epoch, and put `with "
                "om.span(...)` around it: what is not needed each time can be done more seldom."
            ),
            evidence={"share": share, "times": float(times), "between_ns": spent},
            where=Where(section=NOT_IN_A_SPAN),
            gain=Gain(low=0.0, high=share, of="run"),
            command=f"otel-mlperf summary {summary.short_id}",
        )
    ]
