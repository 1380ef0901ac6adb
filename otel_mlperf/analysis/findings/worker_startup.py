"""Finding of DataLoader workers that are restarted for each pass, and the time that this costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.steps.step_shares import DATA_WAIT
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.summary.loader_shapes import LoaderUse
    from otel_mlperf.analysis.summary.summary_shapes import Summary

STARTED: Final = "started"
"""State of workers that were started for the pass."""
_FEWEST: Final = 3
"""Minimum number of passes from which persistent workers are worthwhile."""
_TRAINED: Final = "SELECT max(end_ns) - min(start_ns) FROM steps"


@once_a_run
def find_worker_startup(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per loader whose worker starts exceed the row's share of the training.

    The training is the time from the first step to the end of the last one.
    """
    trained_ns = time_trained(numbers)
    if not trained_ns:
        return []
    found = (_judge(use, trained_ns, numbers.summary) for use in numbers.summary.loaders)
    return [finding for finding in found if finding is not None]


def time_trained(numbers: RunNumbers) -> float:
    """Return the time from the first step to the end of the last one, in ns; 0 without steps."""
    ((trained_ns,),) = numbers.store.rows(_TRAINED)
    return float(trained_ns or 0.0)


def _judge(use: LoaderUse, trained_ns: float, summary: Summary) -> Finding | None:
    row = row_of("worker_startup")
    started = next((first for first in use.first_batches if first.workers == STARTED), None)
    if started is None or started.passes < _FEWEST * summary.ranks:
        return None
    # Persistent workers fetch the first batch of a pass, too, and the first pass starts them.
    fetch_ns = use.wait_ns / use.batches if use.fetch_ns is None else use.fetch_ns
    passes = started.passes / summary.ranks
    start_ns = max(0.0, started.mean_ns - fetch_ns) * (passes - 1)
    spent_ns = start_ns + started.end_ns * (passes - 1)
    share = spent_ns / trained_ns
    if not row.holds(share):
        return None
    each_ns = spent_ns / (passes - 1)
    words = {"dataset": use.dataset, "passes": passes, "each": f"{each_ns / 1e6:.0f} ms"}
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(value=share, **words),
        action=row.action,
        evidence={
            "share": share,
            "passes": passes,
            "excess_ns": start_ns,
            "start_ns": started.mean_ns,
            "end_ns": started.end_ns,
            "batch_ns": fetch_ns,
        },
        where=Where(section=DATA_WAIT),
        gain=Gain(
            low=min(1.0, start_ns / summary.duration_ns),
            high=min(1.0, spent_ns / summary.duration_ns),
            of="run",
        ),
        command=f"otel-mlperf summary {summary.short_id}",
    )
