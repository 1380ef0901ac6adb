"""DataLoader use of a run: waits, fetch times, and slow workers."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.analysis.summary.loader_shapes import FirstBatches, LoaderUse, WorkerUse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.store.table_reader import Store

_SLOW: Final = 1.5
_MIN_BATCHES: Final = 5
# Totals only increase: the maximum of each restart of a rank is its last value.
_TOTALS = """SELECT name, rank, labels, sum(total) FROM (
    SELECT name, rank, restart, labels, max(value) AS total FROM readings
    WHERE starts_with(name, 'ml.dataloader.') AND rank IS NOT NULL
    GROUP BY name, rank, restart, labels
) GROUP BY name, rank, labels ORDER BY name, rank, labels"""


class _Total(NamedTuple):
    name: str
    rank: int
    labels: dict[str, str]
    value: float


class _Totals(list[_Total]):
    def of(self, name: str, **labels: str) -> Iterator[_Total]:
        return (
            total for total in self if total.name == name and labels.items() <= total.labels.items()
        )

    def sum(self, name: str) -> float:
        return sum(total.value for total in self.of(name))


def read_loaders(store: Store) -> list[LoaderUse]:
    """Return the use of each DataLoader that delivered batches, longest total wait first."""
    loaders: dict[str, _Totals] = {}
    for name, rank, labels, value in store.rows(_TOTALS):
        total = _Total(name, rank, json.loads(labels), value)
        if names.DATASET in total.labels:
            loaders.setdefault(total.labels[names.DATASET], _Totals()).append(total)
    uses = [_use(dataset, totals) for dataset, totals in loaders.items()]
    return sorted((use for use in uses if use.batches), key=lambda use: use.wait_ns, reverse=True)


def _use(dataset: str, totals: _Totals) -> LoaderUse:
    requests = totals.sum(f"{names.LOADER_READY.name}.count")
    none_ready = totals.sum(names.LOADER_NONE_READY.name)
    workers = mark_slow(list(_workers(totals)))
    sized = totals.sum(names.LOADER_SIZED.name)
    elements = totals.sum(names.LOADER_ELEMENTS.name)
    return LoaderUse(
        dataset=dataset,
        batches=int(totals.sum(names.LOADER_BATCHES.name)),
        wait_ns=totals.sum(names.LOADER_WAIT.name) * 1e9,
        ready=totals.sum(f"{names.LOADER_READY.name}.sum") / requests if requests else None,
        none_ready_share=none_ready / requests if requests else None,
        fetch_ns=_mean(workers, "fetch_ns"),
        items_ns=_mean(workers, "items_ns"),
        collate_ns=_mean(workers, "collate_ns"),
        workers=workers,
        first_batches=list(_first_batches(totals)),
        elements=elements / sized if sized else None,
    )


def _workers(totals: _Totals) -> Iterator[WorkerUse]:
    for fetched in totals.of(names.LOADER_FETCHED.name):
        worker, batches = fetched.labels[names.LOADER_WORKER], int(fetched.value)
        times: dict[str, float] = {
            time.labels[names.LOADER_PART]: time.value * 1e9
            for time in totals.of(names.LOADER_FETCH_TIME.name, **{names.LOADER_WORKER: worker})
            if time.rank == fetched.rank
        }
        if batches:
            yield WorkerUse(
                rank=fetched.rank,
                worker=worker,
                batches=batches,
                items_ns=times.get(names.LOADER_ITEMS, 0.0) / batches,
                collate_ns=times.get(names.LOADER_COLLATE, 0.0) / batches,
                cpu_ns=_per_batch(totals, names.LOADER_CPU, fetched),
                delay_ns=_per_batch(totals, names.LOADER_DELAY, fetched),
            )


def _per_batch(totals: _Totals, metric: names.Metric, fetched: _Total) -> float | None:
    worker = {names.LOADER_WORKER: fetched.labels[names.LOADER_WORKER]}
    of_worker = totals.of(metric.name, **worker)
    spent = [total.value for total in of_worker if total.rank == fetched.rank]
    return sum(spent) * 1e9 / fetched.value if spent else None


_ITSELF: Final = "main"


def mark_slow(workers: list[WorkerUse]) -> list[WorkerUse]:
    """Return the workers, sorted by rank and number, with ``is_slow`` set for slow workers.

    A training process that fetches its batches itself is never marked.
    """
    workers = sorted(workers, key=lambda use: (use.rank, len(use.worker), use.worker))
    known = [
        worker for worker in workers if worker.batches >= _MIN_BATCHES and worker.worker != _ITSELF
    ]
    slow = [
        worker
        for worker in known
        if (others := [other.fetch_ns for other in known if other is not worker])
        and worker.fetch_ns > _SLOW * median(others)
    ]
    return [replace(worker, is_slow=worker in slow) for worker in workers]


def _first_batches(totals: _Totals) -> Iterator[FirstBatches]:
    first, last = (
        _by_workers(totals, metric) for metric in (names.LOADER_FIRST_BATCH, names.LOADER_END)
    )
    for how, (passes, spent) in first.items():
        ends, ended = last.get(how, (0.0, 0.0))
        if passes:
            yield FirstBatches(
                workers=how,
                passes=int(passes),
                mean_ns=spent / passes * 1e9,
                end_ns=ended / ends * 1e9 if ends else 0.0,
            )


def _by_workers(totals: _Totals, metric: names.Metric) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for at, part in enumerate(("count", "sum")):
        for total in totals.of(f"{metric.name}.{part}"):
            known = [*found.get(total.labels[names.LOADER_WORKERS], (0.0, 0.0))]
            known[at] += total.value
            found[total.labels[names.LOADER_WORKERS]] = (known[0], known[1])
    return found


def _mean(workers: list[WorkerUse], figure: str) -> float | None:
    batches = sum(worker.batches for worker in workers)
    total: Any = sum(getattr(worker, figure) * worker.batches for worker in workers)
    return total / batches if batches else None
