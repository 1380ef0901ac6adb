"""Input of a finding function: a run's summary, tables and cached results."""

from __future__ import annotations

from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_mlperf.analysis.steps.awaited_tasks import read_awaited_share
from otel_mlperf.analysis.steps.step_series import read_section_series, read_step_series
from otel_mlperf.analysis.steps.step_shares import UNTRACKED

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.analysis.steps.step_series import SectionSeries, StepSeries
    from otel_mlperf.analysis.summary.summary_shapes import Summary
    from otel_mlperf.names import Metric
    from otel_mlperf.store.table_reader import Store

T = TypeVar("T")
_LATEST: Final = """SELECT rank, arg_max(value, time_ns) FROM readings
WHERE name = $name AND rank IS NOT NULL GROUP BY rank ORDER BY rank"""


class RunNumbers:
    """Summary and tables of a run, finished or not, with cached query results."""

    def __init__(self, summary: Summary, store: Store) -> None:
        self.summary = summary
        """Summary, exact for the whole run; its ``findings`` are still empty."""
        self.store = store
        """Tables of the run, of the requested rank only, for facts that the summary does not
        contain."""
        self.known: dict[Callable[[RunNumbers], Any], Any] = {}
        """Cached results of functions of a run, see ``once_a_run``."""

    @cached_property
    def steps(self) -> StepSeries | None:
        """Return the steps of the main phase, without the warm-up; None if the run has no steps."""
        steps = self.summary.steps
        if steps is None:
            return None
        return read_step_series(self.store, steps.phase, has_warm_up=self._has_warm_up)

    @cached_property
    def sections(self) -> list[SectionSeries]:
        """Return the sections of the steps in ``steps``, each with its self time per step."""
        steps = self.summary.steps
        if steps is None:
            return []
        return read_section_series(self.store, steps.phase, has_warm_up=self._has_warm_up)

    @cached_property
    def uncovered(self) -> float:
        """Return the untracked share of a step of the main phase, 0.0 to 1.0.

        The share excludes time in which the step awaited other asyncio tasks that were in sections.
        """
        steps = self.summary.steps
        if steps is None:
            return 0.0
        share = sum(one.share for one in steps.rows if one.name == UNTRACKED)
        if any(one.beside and not one.inside for one in steps.rows):
            awaited = read_awaited_share(self.store, steps.phase, has_warm_up=self._has_warm_up)
            share = max(0.0, share - awaited)
        return share

    @cached_property
    def uses_gpu(self) -> bool:
        """Return whether a process of the run uses a GPU, or GPU times of steps are known."""
        ((gpus,),) = self.store.rows("SELECT count(*) FROM processes WHERE has_gpu")
        return bool(gpus) or self.summary.gpu is not None

    def latest(self, metric: Metric) -> dict[int, float]:
        """Return the latest value of a metric by rank, without ranks that have no reading."""
        return dict(self.store.rows(_LATEST, name=metric.name))

    @property
    def _has_warm_up(self) -> bool:
        return self.summary.warm_up is not None


def once_a_run(judge: Callable[[RunNumbers], T]) -> Callable[[RunNumbers], T]:
    """Wrap ``judge`` to cache its result in the ``RunNumbers`` that is its argument."""

    @wraps(judge)
    def answer(numbers: RunNumbers) -> T:
        if judge not in numbers.known:
            numbers.known[judge] = judge(numbers)
        known: T = numbers.known[judge]
        return known

    return answer
