"""Input of a finding: a run's summary, tables and cached step series."""

from __future__ import annotations

from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_mlperf.analysis.steps.awaited_tasks import read_awaited_share
from otel_mlperf.analysis.steps.step_series import read_section_series, read_step_series
from otel_mlperf.analysis.steps.step_shares import NOT_IN_A_SPAN

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
    """The numbers of a run, finished or not; what is read of its tables is read once for all."""

    def __init__(self, summary: Summary, store: Store) -> None:
        self.summary = summary
        """Exact for the whole run; its ``findings`` are empty yet."""
        self.store = store
        """The run's tables, for what the summary does not say; of the rank that was asked for."""
        self.known: dict[Callable[[RunNumbers], Any], Any] = {}
        """What functions of a run have answered, see ``once_a_run``."""

    @cached_property
    def steps(self) -> StepSeries | None:
        """The steps of the main phase, without the warm-up; None of a run without steps."""
        steps = self.summary.steps
        if steps is None:
            return None
        return read_step_series(self.store, steps.phase, has_warm_up=self._has_warm_up)

    @cached_property
    def sections(self) -> list[SectionSeries]:
        """The sections of these steps, with their own time in each."""
        steps = self.summary.steps
        if steps is None:
            return []
        return read_section_series(self.store, steps.phase, has_warm_up=self._has_warm_up)

    @cached_property
    def uncovered(self) -> float:
        """Share of a step of the main phase that is in no section, 0.0 to 1.0.

        Without the time in which it awaited other tasks of its thread that are in sections.
        """
        steps = self.summary.steps
        if steps is None:
            return 0.0
        share = sum(one.share for one in steps.rows if one.name == NOT_IN_A_SPAN)
        if any(one.beside and not one.inside for one in steps.rows):
            awaited = read_awaited_share(self.store, steps.phase, has_warm_up=self._has_warm_up)
            share = max(0.0, share - awaited)
        return share

    @cached_property
    def uses_gpu(self) -> bool:
        """Whether some process of the run does, or a GPU of it was read."""
        ((gpus,),) = self.store.rows("SELECT count(*) FROM processes WHERE has_gpu")
        return bool(gpus) or self.summary.gpu is not None

    def latest(self, metric: Metric) -> dict[int, float]:
        """What was read last of a metric that each rank has once, by rank."""
        return dict(self.store.rows(_LATEST, name=metric.name))

    @property
    def _has_warm_up(self) -> bool:
        return self.summary.warm_up is not None


def once_a_run(judge: Callable[[RunNumbers], T]) -> Callable[[RunNumbers], T]:
    """A function of a run that several findings ask: its answer is worked out once for all."""

    @wraps(judge)
    def answer(numbers: RunNumbers) -> T:
        if judge not in numbers.known:
            numbers.known[judge] = judge(numbers)
        known: T = numbers.known[judge]
        return known

    return answer
