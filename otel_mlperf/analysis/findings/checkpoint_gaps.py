"""How long do steps wait for what the program does around its checkpoints, beside saving them?

It renames the file, removes the one before, copies or counts: nobody records that. Between two
steps of a loop that has nothing else to do there it is all of the time but the saving.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers

MOST_RANKS: Final = 8
"""That are looked at, of a run of thousands: they make their steps together."""
_FEWEST: Final = 3
"""Such gaps from which on what they have in common is no accident."""
GAPS: Final = """gaps AS (SELECT rank, end_ns AS a,
        lead(start_ns) OVER (PARTITION BY rank, restart ORDER BY start_ns) AS b
        FROM steps WHERE phase = $phase AND rank IN
            (SELECT DISTINCT rank FROM steps ORDER BY rank LIMIT $ranks))"""
"""From the end of a step, ``a``, to the begin of the next one of its rank, ``b``."""
# What is in them: the spans that are in no step.
_AROUND: Final = f"""WITH {GAPS},
    inside AS (SELECT gaps.rank, a, b, spans.category, spans.end_ns - spans.start_ns AS ns
        FROM gaps JOIN spans ON spans.rank = gaps.rank AND n IS NULL
        AND spans.start_ns >= a AND spans.end_ns <= b AND spans.category <> $garbage)
    SELECT median(b - a - saved), count(*) FROM (
        SELECT a, b, sum(ns) AS saved FROM inside GROUP BY rank, a, b
        HAVING bool_and(category = $checkpoint))"""


@once_a_run
def time_around_checkpoints_ns(numbers: RunNumbers) -> float:
    """Of all checkpoints outside of steps, by the middle one of those that are alone in a gap."""
    summary = numbers.summary
    saved = sum(one.count or 0 for one in summary.outside if one.name == names.SPAN_CHECKPOINT)
    if summary.steps is None or saved < _FEWEST:
        return 0.0
    ((around, count),) = numbers.store.rows(
        _AROUND,
        phase=summary.steps.phase,
        checkpoint=names.CHECKPOINT,
        garbage=names.GARBAGE_COLLECTION,
        ranks=MOST_RANKS,
    )
    return max(0.0, float(around)) * saved if count >= _FEWEST else 0.0
