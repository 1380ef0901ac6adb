"""Finding of time between steps that no section explains, and time around checkpoints.

At the end of an epoch a loop can count, plot or reload data before the next epoch. Time in sections
is excluded, because another row or finding covers that time. Around a checkpoint, the user's
program can rename the file, remove the previous one or copy it. If a gap contains no other span
than checkpoints, all time in the gap except the saving is attributed to work around the checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.findings.stack_lines import costliest_outside, ending_with
from otel_mlperf.analysis.steps.step_shares import UNTRACKED
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers


MAX_RANKS: Final = 8
"""Maximum number of ranks evaluated: all ranks step together, so a few represent thousands."""
_MIN_SAVES: Final = 3
"""Minimum number of checkpoints, and of gaps with only checkpoints, for a median."""
GAPS: Final = """gaps AS (SELECT rank, end_ns AS a,
        lead(start_ns) OVER (PARTITION BY rank, restart ORDER BY start_ns) AS b
        FROM steps WHERE phase = $phase AND rank IN
            (SELECT DISTINCT rank FROM steps ORDER BY rank LIMIT $ranks))"""
"""SQL of gaps: from the end of a step, ``a``, to the start of the rank's next step, ``b``."""
# Spans outside steps are located in gaps.
_AROUND: Final = f"""WITH {GAPS},
    inside AS (SELECT gaps.rank, a, b, spans.category, spans.end_ns - spans.start_ns AS ns
        FROM gaps JOIN spans ON spans.rank = gaps.rank AND n IS NULL
        AND spans.start_ns >= a AND spans.end_ns <= b AND spans.category <> $garbage)
    SELECT median(b - a - saved), count(*) FROM (
        SELECT a, b, sum(ns) AS saved FROM inside GROUP BY rank, a, b
        HAVING bool_and(category = $checkpoint))"""


@once_a_run
def time_around_checkpoints_ns(numbers: RunNumbers) -> float:
    """Return the time in ns that a rank spends on work around its checkpoints outside steps.

    The result is the number of checkpoints times the median of that work in gaps without other
    spans; 0.0 if such gaps are too few.
    """
    summary = numbers.summary
    saved = sum(one.count or 0 for one in summary.outside if one.name == names.SPAN_CHECKPOINT)
    if summary.steps is None or saved < _MIN_SAVES:
        return 0.0
    ((around, count),) = numbers.store.rows(
        _AROUND,
        phase=summary.steps.phase,
        checkpoint=names.CHECKPOINT,
        garbage=names.GARBAGE_COLLECTION,
        ranks=MAX_RANKS,
    )
    return max(0.0, float(around)) * saved if count >= _MIN_SAVES else 0.0


_ACTION: Final = (
    "Check what the loop does between steps, such as at the end of an epoch, and put "
    "`with om.span(...)` around that work. Do work that is not needed each time less often."
)
_NEEDLESS: Final = 0.45
"""Minimum share of a line's work that can be saved by doing it less often."""
_MIN_STEPS: Final = 10
_MIN_GAP_NS: Final = 1_000_000
"""Minimum length of a gap, because every loop has shorter ones."""
_LONG: Final = f"""WITH {GAPS}
    SELECT count(*), coalesce(sum(b - a), 0) FROM gaps WHERE b - a > $least"""


def find_between_steps(numbers: RunNumbers) -> list[Finding]:
    """Return one finding if untracked time between steps exceeds the threshold share of the run."""
    summary, row = numbers.summary, row_of("uncovered")
    steps = summary.steps
    if steps is None or steps.count < _MIN_STEPS or not summary.duration_ns:
        return []
    untracked_ns = sum(one.sum_ns for one in summary.outside if one.name == UNTRACKED)
    if not row.holds(untracked_ns / summary.duration_ns):
        return []
    ((count, gaps_ns),) = numbers.store.rows(
        _LONG, phase=steps.phase, least=_MIN_GAP_NS, ranks=MAX_RANKS
    )
    ranks = min(summary.ranks, MAX_RANKS)
    spent = min(untracked_ns, float(gaps_ns) / ranks) - time_around_checkpoints_ns(numbers)
    share = spent / summary.duration_ns
    if not count or not row.holds(share):
        return []
    times = max(1, round(count / ranks))
    each = f"{spent / 1e9:.2f} s"
    if times > 1:
        each = f"{times} gaps of {spent / times / 1e9:.2f} s on average"
    of_line, line = costliest_outside(numbers, names.STACK_SAMPLES_BETWEEN)
    action, saved = _ACTION, 0.0  # work in unknown lines may be necessary
    costly = row_of("costly_line")
    if costly.holds(share * of_line):
        row, action, saved = costly, costly.action, _NEEDLESS * share * of_line
    return [
        Finding(
            id=row.id,
            severity=row.severity,
            summary=f"{share:.0%} of the run is between steps and in no section: {each}"
            + ending_with(of_line, line, of="the time between steps"),
            action=action,
            evidence={"share": share, "times": float(times), "between_ns": spent},
            where=Where(section=UNTRACKED),
            gain=Gain(low=saved, high=share, of="run"),
            command=f"otel-mlperf summary {summary.short_id}",
        )
    ]
