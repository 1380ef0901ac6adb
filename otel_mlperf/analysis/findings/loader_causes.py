"""Findings of the cause of data waits: slow storage, a slow collate_fn, one slow worker.

Fetch time of workers is not reported if no step waits for it.

Gains are computed with ``LoaderModel``, which predicts a step's data wait for other fetch times or
worker counts. Without workers, a step waits for the whole fetch of its batches. Workers fetch in
parallel to the step and deliver their batches in turn. Each of W workers delivers every W-th batch,
so the slowest worker sets the pace. A step waits for the fetch time that the step's own work does
not cover: ``max(0, fetch / W - work)``.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.steps.step_shares import DATA_WAIT
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_shapes import StepFigures
    from otel_mlperf.analysis.summary.loader_shapes import LoaderUse, WorkerUse


_REMAINING: Final = 0.25
"""Fraction of the cost of ``collate_fn`` that is assumed to remain after its optimization."""
_MAX_WORKERS: Final = 16
_WAIT: Final = Where(section=DATA_WAIT)


@once_a_run
def find_loader_causes(numbers: RunNumbers) -> list[Finding]:
    """Return one finding for each cause of data waits whose figure exceeds its own threshold."""
    model = model_loader(numbers)
    if model is None:
        return []
    # A slow worker affects all figures of its loader: other findings would repeat it.
    return _slow_workers(model) or [*_collate(model), *_storage(model)]


def workers_needed(model: LoaderModel) -> int:
    """Return the number of workers from which steps no longer wait for batches, limited to 16."""
    enough = math.ceil(model.fetch_ns / model.work_ns) if model.work_ns > 0 else _MAX_WORKERS
    return max(1, min(_MAX_WORKERS, enough))


def _slow_workers(model: LoaderModel) -> list[Finding]:
    row, slow = row_of("slow_worker"), [use for use in model.use.workers if use.is_slow]
    if not slow:
        return []
    # Best case: after a fix the worker is as fast as the other workers. If its samples cost more in
    # any worker, they can only be distributed over all workers.
    fixed = model.won(lambda use: _usual(model, use) if use.is_slow else use.fetch_ns)
    spread = model.won(lambda use: _mean_of_rank(model, use))
    if not row.holds(fixed) or not model.is_worth(fixed):
        return []
    worst = max(slow, key=lambda use: use.fetch_ns)
    usual = _usual(model, worst)
    ranks = len({use.rank for use in model.use.workers})
    fields = {
        "worker": worst.worker + (f" of rank {worst.rank}" if ranks > 1 else ""),
        "dataset": model.use.dataset,
        "times": worst.fetch_ns / usual if usual else math.inf,
        "value": fixed,
        "reason": _reason(worst),
    }
    evidence = {"slow_ns": worst.fetch_ns, "usual_ns": usual, "share": fixed}
    where = Where(section=DATA_WAIT, rank=worst.rank if ranks > 1 else None)
    gain = Gain(low=min(spread, fixed), high=fixed)
    return [_finding(row.id, fields, evidence, gain, where)]


def _usual(model: LoaderModel, of: WorkerUse) -> float:
    others = [
        use.fetch_ns for use in model.use.workers if use.rank == of.rank and not use.is_slow
    ] or [of.fetch_ns]
    return median(others)


def _mean_of_rank(model: LoaderModel, of: WorkerUse) -> float:
    fetches = [use.fetch_ns for use in model.use.workers if use.rank == of.rank]
    return sum(fetches) / len(fetches)


def _reason(worst: WorkerUse) -> str:
    spent = worst.fetch_ns or 1.0
    if worst.idle_ns is None:
        return "its samples take longer"
    if worst.idle_ns > spent / 2:
        return f"loading waits for files or the network {worst.idle_ns / spent:.0%} of the time"
    if (worst.delay_ns or 0.0) > spent / 2:
        return "the worker is ready to run, but has no CPU"
    return "its samples require more CPU time"


def _collate(model: LoaderModel) -> list[Finding]:
    row, use = row_of("collate"), model.use
    share = _part(model, lambda worker: worker.collate_ns)
    won = model.won(lambda worker: worker.items_ns)
    if not _is_reportable(model, row.id, share, won):
        return []
    fields = {"dataset": use.dataset, "value": share}
    evidence = {
        "share": share,
        "collate_ns": use.collate_ns or 0.0,
        "batch_ns": use.fetch_ns or 0.0,
    }
    least = model.won(lambda worker: worker.fetch_ns - (1 - _REMAINING) * worker.collate_ns)
    return [_finding(row.id, fields, evidence, Gain(low=least, high=won))]


def _storage(model: LoaderModel) -> list[Finding]:
    row, use = row_of("storage"), model.use
    share = _part(model, _idle)
    won = model.won(lambda worker: worker.fetch_ns - _idle(worker))
    if not _is_reportable(model, row.id, share, won):
        return []
    workers = max(workers_needed(model), model.workers + 1)
    more = model.won(lambda worker: worker.fetch_ns, workers)
    fields = {"dataset": use.dataset, "value": share, "workers": f"num_workers={workers}"}
    evidence = {"share": share, "idle_ns": share * (use.fetch_ns or 0.0)}
    evidence["batch_ns"] = use.fetch_ns or 0.0
    return [_finding(row.id, fields, evidence, Gain(low=min(won, more), high=max(won, more)))]


def _idle(worker: WorkerUse) -> float:
    return worker.idle_ns or 0.0


def _part(model: LoaderModel, part: Callable[[WorkerUse], float]) -> float:
    spent = sum(use.fetch_ns * use.batches for use in model.use.workers)
    return sum(part(use) * use.batches for use in model.use.workers) / spent if spent else 0.0


def _is_reportable(model: LoaderModel, id: str, share: float, won: float) -> bool:
    row = row_of(id)
    return row.holds(share) and won > row.min_step_share and model.is_worth(won)


def _finding(
    id: str,
    fields: dict[str, object],
    evidence: dict[str, float],
    gain: Gain,
    where: Where = _WAIT,
) -> Finding:
    row = row_of(id)
    return Finding(
        id=id,
        severity=row.severity,
        summary=row.summary.format(**fields),
        action=row.action.format(**fields),
        evidence=evidence,
        where=where,
        gain=gain,
    )


MAIN: Final = "main"
"""Worker name for a loader without workers: the training process itself."""
WORTH_NS: Final = 1_000_000.0
"""Minimum saving per step: moving a batch between processes costs about as much."""
_MIN_STEPS: Final = 10
_WAITS: Final = """SELECT sum(count) FROM sections
    WHERE phase = $phase AND n IS NOT NULL AND category = $category AND NOT beside"""


class LoaderModel(NamedTuple):
    """Model of the loader for which the main phase's steps wait; times are means per step."""

    use: LoaderUse
    step_ns: float
    wait_ns: float
    batches: float
    """Batches of this loader per step."""

    @property
    def work_ns(self) -> float:
        """Return the time of a step without its data wait."""
        return self.step_ns - self.wait_ns

    @property
    def workers(self) -> int:
        """Return the largest number of workers of any rank; 0 if training processes load data."""
        return max(len(of_rank) for of_rank in self._by_rank())

    @property
    def fetch_ns(self) -> float:
        """Return the time in ns in which one process fetches a step's batches; 0.0 if unknown."""
        return (self.use.fetch_ns or 0.0) * self.batches if self.use.workers else 0.0

    def waited(self, fetch: Callable[[WorkerUse], float], workers: int | None = None) -> float:
        """Return the predicted data wait of a step in ns, on the rank that waits most.

        ``fetch`` returns the assumed ns of a worker per batch. ``workers`` is the assumed number of
        workers per rank (None: unchanged), all as fast as the slowest worker.
        """
        return max(self._waited(of_rank, fetch, workers) for of_rank in self._by_rank())

    def won(self, fetch: Callable[[WorkerUse], float], workers: int | None = None) -> float:
        """Return the share of a step that is saved if workers need the times of ``fetch``.

        The arguments are those of ``waited``. At most the current wait is saved.
        """
        won_ns = self.waited(lambda use: use.fetch_ns) - self.waited(fetch, workers)
        return max(0.0, min(won_ns, self.wait_ns) / self.step_ns)

    def is_worth(self, won: float) -> bool:
        """Return whether saving the share ``won`` of a step justifies a change."""
        return won * self.step_ns >= WORTH_NS

    def _waited(
        self, of_rank: list[WorkerUse], fetch: Callable[[WorkerUse], float], workers: int | None
    ) -> float:
        slowest = max(fetch(use) for use in self._fetching(of_rank)) * self.batches
        count = len(of_rank) if workers is None else workers
        return slowest if not count else max(0.0, slowest / count - self.work_ns)

    def _by_rank(self) -> list[list[WorkerUse]]:
        """Return the workers of each rank; a rank that fetches batches itself has an empty list."""
        ranks = {use.rank for use in self.use.workers}
        return [
            [use for use in self.use.workers if use.rank == rank and use.worker != MAIN]
            for rank in sorted(ranks)
        ]

    def _fetching(self, of_rank: list[WorkerUse]) -> list[WorkerUse]:
        return of_rank or self.use.workers


@once_a_run
def model_loader(numbers: RunNumbers) -> LoaderModel | None:
    """Return the model of the loader that steps wait for.

    Return None if the run has too few steps, or no readings of a loader that most steps use.
    """
    summary = numbers.summary
    steps = summary.steps
    if steps is None or steps.count < _MIN_STEPS or not steps.mean_ns:
        return None
    counted = steps.count * summary.ranks
    wait_ns = wait_of(steps)
    known = [use for use in summary.loaders if use.workers and use.batches >= counted / 2]
    if not known:
        return None
    use = min(known, key=lambda use: abs(use.wait_ns - wait_ns * counted))
    ((waits,),) = numbers.store.rows(_WAITS, phase=steps.phase, category=names.DATA_LOADING)
    batches = max(1.0, round((waits or 0) / counted))
    return LoaderModel(use, steps.mean_ns, wait_ns, batches)


def wait_of(steps: StepFigures) -> float:
    """Return the mean data wait of a step, in ns."""
    return sum(
        row.mean_ns for row in steps.rows if row.category == names.DATA_LOADING and not row.beside
    )
