"""Findings of the cause of data waits: slow storage, a slow collate_fn, one slow worker.

``LoaderModel`` computes the gain. Worker time that no step waits for is not reported.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.findings.loader_model import model_loader
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.steps.step_shares import DATA_WAIT
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.analysis.findings.loader_model import LoaderModel
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.summary.loader_shapes import WorkerUse

_LEFT: Final = 0.25
"""Part of an optimized cost that may well remain."""
_MOST_WORKERS: Final = 16
_WAIT: Final = Where(section=DATA_WAIT)


@once_a_run
def find_loader_causes(numbers: RunNumbers) -> list[Finding]:
    """Return one finding per cause of a data wait that exceeds its threshold."""
    model = model_loader(numbers)
    if model is None:
        return []
    # A slow worker affects all figures of its loader: other findings would repeat it.
    return _slow_workers(model) or [*_collate(model), *_storage(model)]


def workers_needed(model: LoaderModel) -> int:
    """Return the number of workers whose time a step's own work covers, 1 to 16."""
    enough = math.ceil(model.fetch_ns / model.work_ns) if model.work_ns > 0 else _MOST_WORKERS
    return max(1, min(_MOST_WORKERS, enough))


def _slow_workers(model: LoaderModel) -> list[Finding]:
    row, slow = row_of("slow_worker"), [use for use in model.use.workers if use.is_slow]
    if not slow:
        return []
    # Fixed, the worker is as fast as the other workers. If its samples cost more in any worker,
    # they can be distributed over all workers.
    mended = model.won(lambda use: _usual(model, use) if use.is_slow else use.fetch_ns)
    spread = model.won(lambda use: _mean_of_rank(model, use))
    if not row.holds(mended) or not model.is_worth(mended):
        return []
    worst = max(slow, key=lambda use: use.fetch_ns)
    usual = _usual(model, worst)
    ranks = len({use.rank for use in model.use.workers})
    words = {
        "worker": worst.worker + (f" of rank {worst.rank}" if ranks > 1 else ""),
        "dataset": model.use.dataset,
        "times": worst.fetch_ns / usual if usual else math.inf,
        "value": mended,
        "reason": _reason(worst),
    }
    evidence = {"slow_ns": worst.fetch_ns, "usual_ns": usual, "share": mended}
    where = Where(section=DATA_WAIT, rank=worst.rank if ranks > 1 else None)
    gain = Gain(low=min(spread, mended), high=mended)
    return [_finding(row.id, words, evidence, gain, where)]


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
        return f"it waits for {worst.idle_ns / spent:.0%} of its time, for files or a network"
    if (worst.delay_ns or 0.0) > spent / 2:
        return "it is ready to run, but gets no CPU"
    return "its samples require more CPU time"


def _collate(model: LoaderModel) -> list[Finding]:
    row, use = row_of("collate"), model.use
    share = _part(model, lambda worker: worker.collate_ns)
    won = model.won(lambda worker: worker.items_ns)
    if not _is_told(model, row.id, share, won):
        return []
    words = {"dataset": use.dataset, "value": share}
    evidence = {
        "share": share,
        "collate_ns": use.collate_ns or 0.0,
        "batch_ns": use.fetch_ns or 0.0,
    }
    kept = model.won(lambda worker: worker.fetch_ns - (1 - _LEFT) * worker.collate_ns)
    return [_finding(row.id, words, evidence, Gain(low=kept, high=won))]


def _storage(model: LoaderModel) -> list[Finding]:
    row, use = row_of("storage"), model.use
    share = _part(model, _idle)
    won = model.won(lambda worker: worker.fetch_ns - _idle(worker))
    if not _is_told(model, row.id, share, won):
        return []
    workers = max(workers_needed(model), model.workers + 1)
    more = model.won(lambda worker: worker.fetch_ns, workers)
    words = {"dataset": use.dataset, "value": share, "workers": f"num_workers={workers}"}
    evidence = {"share": share, "idle_ns": share * (use.fetch_ns or 0.0)}
    evidence["batch_ns"] = use.fetch_ns or 0.0
    return [_finding(row.id, words, evidence, Gain(low=min(won, more), high=max(won, more)))]


def _idle(worker: WorkerUse) -> float:
    return worker.idle_ns or 0.0


def _part(model: LoaderModel, part: Callable[[WorkerUse], float]) -> float:
    """Return the share of a batch's time, over all workers."""
    spent = sum(use.fetch_ns * use.batches for use in model.use.workers)
    return sum(part(use) * use.batches for use in model.use.workers) / spent if spent else 0.0


def _is_told(model: LoaderModel, id: str, share: float, won: float) -> bool:
    row = row_of(id)
    return row.holds(share) and won > row.min_step_share and model.is_worth(won)


def _finding(
    id: str,
    words: dict[str, object],
    evidence: dict[str, float],
    gain: Gain,
    where: Where = _WAIT,
) -> Finding:
    row = row_of(id)
    return Finding(
        id=id,
        severity=row.severity,
        summary=row.summary.format(**words),
        action=row.action.format(**words),
        evidence=evidence,
        where=where,
        gain=gain,
    )
