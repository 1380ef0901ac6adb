"""What is asked at a few updates of a run, that would cost too much, or change nothing, at each?

What the history of the optimizer may come to, and how many collectives an update takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.pytorch.loop.collective_count import StepCollectives, count_collectives
from otel_mlperf.pytorch.loop.optimizer_history import history_bytes

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.recorder import Recorder

ASKED: Final = (2, 20, 200)
"""Updates of a run: the first one may be another."""


class FewUpdates:
    """Counts the updates of a run, and asks at some of them."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._updates = self._collectives = 0

    def begins(self, recorder: Recorder | None, optimizer: Any) -> None:
        """An update of this optimizer does, in this run."""
        if recorder is not self._recorder:
            self._recorder, self._updates = recorder, 0
        self._updates += 1
        if self._updates in ASKED and recorder is not None:
            recorder.kept.pop(StepCollectives, None)  # by update it is known better
            _record(recorder, names.OPTIMIZER_HISTORY, history_bytes(optimizer))
            _record(recorder, names.COLLECTIVES, self._collectives_an_update())

    def _collectives_an_update(self) -> float:
        """Since it was asked first; 0.0 then."""
        counted, since = count_collectives(), self._updates - ASKED[0]
        if not since:
            self._collectives = counted
        return (counted - self._collectives) / max(since, 1)


def _record(recorder: Recorder, metric: names.Metric, value: float) -> None:
    if value > 0:  # what there is none of would only take room
        recorder.cells.set(metric.name, metric.unit, value)
