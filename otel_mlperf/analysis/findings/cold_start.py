"""Findings of a slow start: slow first steps, slow first batches of a pass, restarted workers.

First steps, or first batches of a pass, are reported if they take far longer than later ones.
Workers that are started for each pass are reported as ``worker_startup`` instead. Compilation by
torch.compile is excluded, because users expect it. Repeated compilation is reported as
``recompilation``.
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


_MIN_STEPS: Final = 60
_BLOCK: Final = 5
"""Steps per block. Block means are compared so that one short step does not end the start phase."""
_LONG: Final = 1.5
"""Minimum mean of a block in the start phase, in multiples of the later typical step."""
_MIN_EXCESS_NS: Final = 1e9
"""Minimum excess time of the first steps: every program has a short start phase."""
_MAX_RECURRING: Final = 0.05
"""Maximum share of later steps that are as slow as the first ones. Above it, slow steps recur in
the whole run, e.g. because of noisy neighbours."""
_MUCH: Final = 0.1
"""Minimum excess of the last step of the start phase, as a fraction of the phase's mean excess."""
_MAX_LENGTH: Final = 0.5
_COMPILING: Final = """SELECT sum(self_ns) / nullif(count(DISTINCT rank), 0) FROM sections
    WHERE phase = $phase AND category = $category AND n IS NOT NULL
    AND number BETWEEN $first AND $last"""


class _Start(NamedTuple):
    what: str
    excess_ns: float
    times: float
    where: Where
    evidence: dict[str, float]


@once_a_run
def find_cold_start(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per slow start that costs more than the threshold share of training."""
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
    series, warm_up = numbers.steps, numbers.summary.warm_up
    if series is None or len(series.numbers) < _MIN_STEPS:
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
    if excess_ns < _MIN_EXCESS_NS or count > _MAX_LENGTH * len(durations):
        return
    mean_ns = usual_ns + excess_ns / steps
    if (durations[count:] > (usual_ns + mean_ns) / 2).mean() > _MAX_RECURRING:
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
    phase = numbers.summary.steps.phase if numbers.summary.steps else ""
    ((compile_ns,),) = numbers.store.rows(
        _COMPILING, phase=phase, category=names.COMPILE, first=first, last=last
    )
    return float(compile_ns or 0.0)


def _count_long(durations: NDArray[np.float64], usual_ns: float) -> int:
    blocks = len(durations) // _BLOCK
    means = durations[: blocks * _BLOCK].reshape(blocks, _BLOCK).mean(axis=1)
    short = np.flatnonzero(means <= _LONG * usual_ns)
    return (int(short[0]) if len(short) else blocks) * _BLOCK


def _count_decisive(durations: NDArray[np.float64], usual_ns: float, excess_ns: float) -> int:
    """Return the number of steps up to the last step that has a large part of ``excess_ns``.

    The last ``durations`` might be of usual length, because ``_count_long`` counts whole blocks.
    The warm-up step is not counted.
    """
    much = np.flatnonzero(durations - usual_ns > _MUCH * excess_ns / (len(durations) + 1))
    return int(much[-1]) + 1 if len(much) else 0


def _longer(numbers: RunNumbers, series: StepSeries, count: int) -> str:
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
        # The first-time work may be necessary in any case, only at an earlier time.
        gain=Gain(low=share / 2, high=share, of="run"),
        command=f"otel-mlperf summary {summary.short_id}",
    )


STARTED: Final = "started"
"""Value of ``workers`` of a loader's first batches if the pass started the workers."""
_MIN_PASSES: Final = 3
_TRAINED: Final = "SELECT max(end_ns) - min(start_ns) FROM steps"


@once_a_run
def find_worker_startup(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per loader whose worker starts cost more than the threshold.

    The threshold is a share of the time from the first step to the end of the last one.
    """
    trained_ns = time_trained(numbers)
    if not trained_ns:
        return []
    found = (_judge(use, trained_ns, numbers.summary) for use in numbers.summary.loaders)
    return [finding for finding in found if finding is not None]


def time_trained(numbers: RunNumbers) -> float:
    """Return the ns from the start of the first step to the end of the last; 0.0 without steps."""
    ((trained_ns,),) = numbers.store.rows(_TRAINED)
    return float(trained_ns or 0.0)


def _judge(use: LoaderUse, trained_ns: float, summary: Summary) -> Finding | None:
    row = row_of("worker_startup")
    started = next((first for first in use.first_batches if first.workers == STARTED), None)
    if started is None or started.passes < _MIN_PASSES * summary.ranks:
        return None
    # Not saved by persistent workers: the fetch of each first batch, and the start in the first
    # pass.
    fetch_ns = use.wait_ns / use.batches if use.fetch_ns is None else use.fetch_ns
    passes = started.passes / summary.ranks
    start_ns = max(0.0, started.mean_ns - fetch_ns) * (passes - 1)
    spent_ns = start_ns + started.end_ns * (passes - 1)
    share = spent_ns / trained_ns
    if not row.holds(share):
        return None
    each_ns = spent_ns / (passes - 1)
    fields = {"dataset": use.dataset, "passes": passes, "each": f"{each_ns / 1e6:.0f} ms"}
    return Finding(
        id=row.id,
        severity=row.severity,
        summary=row.summary.format(value=share, **fields),
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
