"""Where does a validation begin, which a loop shows only with its first batch or forward?

Where a model was switched to evaluation, or a framework's own call began, if nothing was recorded
since: what lies between, such as a loader that starts its workers, is part of it. With that call it
ends, too.
"""

from __future__ import annotations

import time
from typing import Any

from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment, safely
from otel_mlperf.pytorch.loop_thread import LoopThread
from otel_mlperf.recorder.api.span import active


class EvaluationMode(LoopMoment):
    """``eval()`` of a module: no section, and nothing is inside it."""

    def of(self, subject: Any = None) -> Any:
        """Notes the time of the first of several in a row."""
        if LoopThread.is_here():
            safely(_note)
        return UNSEEN


class Evaluation(EvaluationMode):
    """A framework's call that validates, or is a part of that."""

    def of(self, subject: Any = None) -> Any:
        """Notes when it begins, unless that is within a validation, and when it ends."""
        if not LoopThread.is_here() or self._loop.depth:
            return UNSEEN
        if not self._loop.validation.is_open:
            safely(_note)
        return self

    def __enter__(self) -> None:
        self.busy = True

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.busy = LoopMoment.is_off
        safely(self._loop.over, time.monotonic_ns())


class Evaluator(EvaluationMode):
    """A call of ignite that runs a loop of any kind, its evaluators inside that of its trainer."""

    def of(self, subject: Any = None) -> Any:
        """Ends the validation of the evaluator before."""
        if not LoopThread.is_here() or self._loop.depth:
            return UNSEEN
        safely(self._loop.evaluation_begins)
        safely(_note)
        return UNSEEN


def _note() -> None:
    recorder = active()
    if recorder is not None:
        number = recorder.next_id()
        if number != LoopMoment.switched_id + 1:
            LoopMoment.switched_ns = time.monotonic_ns()
        LoopMoment.switched_id = number
