"""Findings of a slow start: slow first steps, slow first batches of a pass, restarted workers.

First steps, or first batches of a pass, count if they far exceed later ones. Workers that are
started for each pass are reported as ``worker_startup`` instead. Compilation by torch.compile is
excluded: its users expect it, and repeated compilation is ``recompilation``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.steps.step_shares import DATA_WAIT, UNTRACKED, shown
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_series import StepSeries
    from otel_mlperf.analysis.summary.loader_shapes import LoaderUse
    from otel_mlperf.analysis.summary.summary_shapes import Summary


_FEWEST: Final = 60
"""Minimum number of steps to distinguish a slow start from later steps."""
_BLOCK: Final = 5
"""Steps per block: a single short step does not end the start phase."""
_LONG: Final = 1.5
"""A block belongs to the start phase from this multiple of the later typical step upward."""
_LEAST_NS: Final = 1e9
"""Minimum excess of the training's start: every program has a short one."""
_AGAIN: Final = 0.05
"""Maximum share of later steps that are as long: beyond it slow steps recur, as with noisy
neighbours."""
_MUCH: Final = 0.1
"""Minimum excess of a start step, as a part of the mean excess of the first steps."""
_LONGEST: Final = 0.5
"""Maximum share of the steps: a longer phase is not a start."""

_COMPILING: Final = """SELECT sum(self_ns) / nullif(count(DISTINCT rank), 0) FROM sections
    WHERE phase = $phase AND category = $category AND n IS NOT NULL
    AND number BETWEEN $first AND $last"""


class _Start(NamedTuple):
    """Excess time of starts beyond the typical time."""

    what: str
    excess_ns: float
    times: float
    where: Where
    evidence: dict[str, float]


@once_a_run
def find_cold_start(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per kind of start that exceeds the row's share of the training."""
    trained_ns = time_trained(numbers)
    if not trained_ns:
        return []
    starts = [*_of_passes(numbers), *_of_training(numbers)]
    return [
        _finding(start, trained_ns, numbers)
        for start in starts
        if row_of("cold_start").holds(start.excess_ns / trained_ns)
    ]


def _of_passes(numbers: RunNumbers) -> Iterator[_Start]:
    """Yield the start of a loader's passes: first batches, except waits for workers to start."""
    for use in numbers.summary.loaders:
        for first in use.first_batches:
            others = use.batches - first.passes
            rest_ns = use.wait_ns - first.passes * first.mean_ns
            if first.workers == STARTED or first.passes < 2 or others < first.passes:
                continue
            usual_ns = max(0.0, rest_ns) / others
            passes = round(first.passes / numbers.summary.ranks)
            yield _Start(
                f"the first batch of each of {passes:,} passes through {use.dataset} takes "
                f"{first.mean_ns / 1e6:,.0f} ms",
                (first.mean_ns - usual_ns) * first.passes / numbers.summary.ranks,
                first.mean_ns / usual_ns if usual_ns else 1.0,
                Where(section=DATA_WAIT),
                {"first_ns": first.mean_ns, "usual_ns": usual_ns, "passes": float(first.passes)},
            )


def _of_training(numbers: RunNumbers) -> Iterator[_Start]:
    """Yield the start of the training: the first steps."""
    series, warm_up = numbers.steps, numbers.summary.warm_up
    if series is None or len(series.numbers) < _FEWEST:
        return
    durations = series.durations_ns
    usual_ns = float(np.median(durations[len(durations) // 2 :]))
    count = _count_long(durations, usual_ns)
    excess_ns = float((durations[:count] - usual_ns).sum())
    if warm_up is not None:
        excess_ns += warm_up.duration_ns - usual_ns
    count = _count_decisive(durations[:count], usual_ns, excess_ns)
    steps = count + (warm_up is not None)
    first = int(series.numbers[0]) if warm_up is None else warm_up.number
    last = int(series.numbers[count - 1]) if count else first
    excess_ns -= _compiling_ns(numbers, first, last)
    if excess_ns < _LEAST_NS or count > _LONGEST * len(durations):
        return
    mean_ns = usual_ns + excess_ns / steps
    if (durations[count:] > (usual_ns + mean_ns) / 2).mean() > _AGAIN:
        return
    yield _Start(
        f"the first {steps:,} steps take {mean_ns / 1e6:,.0f} ms each" if steps > 1
        else f"the first step takes {mean_ns / 1e6:,.0f} ms",
        excess_ns,
        mean_ns / usual_ns,
        Where(section=_longer(numbers, series, count), steps=(first, last)),
        {"first_ns": mean_ns, "usual_ns": usual_ns, "steps": float(steps)},
    )  # fmt: skip


def _compiling_ns(numbers: RunNumbers, first: int, last: int) -> float:
    """Return the time of torch.compile in these steps, mean over the ranks that compile."""
    phase = numbers.summary.steps.phase if numbers.summary.steps else ""
    ((compile_ns,),) = numbers.store.rows(
        _COMPILING, phase=phase, category=names.COMPILE, first=first, last=last
    )
    return float(compile_ns or 0.0)


def _count_long(durations: NDArray[np.float64], usual_ns: float) -> int:
    """Count the steps before the first block that is as short as later ones."""
    blocks = len(durations) // _BLOCK
    means = durations[: blocks * _BLOCK].reshape(blocks, _BLOCK).mean(axis=1)
    short = np.flatnonzero(means <= _LONG * usual_ns)
    return (int(short[0]) if len(short) else blocks) * _BLOCK


def _count_decisive(durations: NDArray[np.float64], usual_ns: float, excess_ns: float) -> int:
    """Return the steps up to the last one that takes much of the excess, without the warm-up.

    Blocks contain several steps: those after a single long step are not part of the start.
    """
    much = np.flatnonzero(durations - usual_ns > _MUCH * excess_ns / (len(durations) + 1))
    return int(much[-1]) + 1 if len(much) else 0


def _longer(numbers: RunNumbers, series: StepSeries, count: int) -> str:
    """Return the section with most of the excess of these steps; empty for the first step alone."""
    if not count:
        return ""
    own = {shown(one.name): one.own_ns for one in numbers.sections}
    own[UNTRACKED] = series.own_ns
    return max(own, key=lambda name: own[name][:count].mean() - np.median(own[name][count:]))


def _finding(start: _Start, trained_ns: float, numbers: RunNumbers) -> Finding:
    row, summary = row_of("cold_start"), numbers.summary
    part = start.excess_ns / trained_ns
    share = min(1.0, start.excess_ns / summary.duration_ns)
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(what=start.what, times=start.times, value=part),
        action=row.action,
        evidence={"share": part, "excess_ns": start.excess_ns, **start.evidence},
        where=start.where,
        # First-time work may be necessary anyway, only earlier.
        gain=Gain(low=share / 2, high=share, of="run"),
        command=f"otel-mlperf summary {summary.short_id}",
    )


STARTED: Final = "started"
"""State of workers that were started for the pass."""
_FEWEST_PASSES: Final = 3
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
    if started is None or started.passes < _FEWEST_PASSES * summary.ranks:
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
