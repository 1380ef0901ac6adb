"""Model of a DataLoader: predicted data wait of a step for other fetch times or worker counts.

Without workers a step waits as long as fetching its batches lasts. Workers fetch in parallel to the
step and deliver their batches in turn. Each of W workers delivers every W-th batch, so the slowest
worker sets the pace. A step waits for what its own work does not cover:
``max(0, fetch / W - work)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mlperf import names
from otel_mlperf.analysis.findings.run_numbers import once_a_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.steps.step_shapes import StepFigures
    from otel_mlperf.analysis.summary.loader_shapes import LoaderUse, WorkerUse

MAIN: Final = "main"
"""Worker name for a loader without workers: the training process itself."""
WORTH_NS: Final = 1_000_000.0
"""Minimum saving per step: moving a batch between processes costs about as much."""
_FEWEST: Final = 10
"""Minimum number of steps for loader figures that the first steps do not dominate."""
_WAITS: Final = """SELECT sum(count) FROM sections
    WHERE phase = $phase AND n IS NOT NULL AND category = $category AND NOT beside"""


class LoaderModel(NamedTuple):
    """Model of the loader for which the main phase's steps wait; times are per step."""

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
        """Return the workers per rank; 0: the process fetches itself."""
        return max(len(of_rank) for of_rank in self._by_rank())

    @property
    def fetch_ns(self) -> float:
        """Return the fetch time of a step's batches, whoever fetches them."""
        return (self.use.fetch_ns or 0.0) * self.batches if self.use.workers else 0.0

    def waited(self, fetch: Callable[[WorkerUse], float], workers: int | None = None) -> float:
        """Return the predicted wait of a step for given fetch times, on the rank that waits most.

        With ``workers`` the prediction is for that number of workers, all as fast as the slowest.
        """
        return max(self._waited(of_rank, fetch, workers) for of_rank in self._by_rank())

    def won(self, fetch: Callable[[WorkerUse], float], workers: int | None = None) -> float:
        """Return the share of a step that would be saved, 0.0 to 1.0, at most the current wait."""
        won_ns = self.waited(lambda use: use.fetch_ns) - self.waited(fetch, workers)
        return max(0.0, min(won_ns, self.wait_ns) / self.step_ns)

    def is_worth(self, won: float) -> bool:
        """Return whether that share of a step is long enough to justify a change."""
        return won * self.step_ns >= WORTH_NS

    def _waited(
        self, of_rank: list[WorkerUse], fetch: Callable[[WorkerUse], float], workers: int | None
    ) -> float:
        slowest = max(fetch(use) for use in self._fetching(of_rank)) * self.batches
        count = len(of_rank) if workers is None else workers
        return slowest if not count else max(0.0, slowest / count - self.work_ns)

    def _by_rank(self) -> list[list[WorkerUse]]:
        """Return the workers of each rank; empty where the process fetches itself."""
        ranks = {use.rank for use in self.use.workers}
        return [
            [use for use in self.use.workers if use.rank == rank and use.worker != MAIN]
            for rank in sorted(ranks)
        ]

    def _fetching(self, of_rank: list[WorkerUse]) -> list[WorkerUse]:
        return of_rank or self.use.workers


@once_a_run
def model_loader(numbers: RunNumbers) -> LoaderModel | None:
    """Return the model of the loader that causes the steps' waits; None if too little is known."""
    summary = numbers.summary
    steps = summary.steps
    if steps is None or steps.count < _FEWEST or not steps.mean_ns:
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
    """Return the data wait of a mean step."""
    return sum(
        row.mean_ns for row in steps.rows if row.category == names.DATA_LOADING and not row.beside
    )
