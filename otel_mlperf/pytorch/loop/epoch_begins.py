"""Begins of a framework's own epochs: no section, the loop only learns their numbers."""

from __future__ import annotations

from typing import Any, Final

from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment, safely
from otel_mlperf.pytorch.loop_thread import LoopThread

_ROUNDING: Final = 1e-6
"""transformers adds the shares of steps up to its epoch."""


class EpochBegins(LoopMoment):
    """The call with which Lightning's fit loop or transformers' Trainer begins an epoch."""

    def of(self, subject: Any = None) -> Any:
        """Passes the number on that the framework counts."""
        if LoopThread.is_here():
            safely(self._report, subject)
        return UNSEEN

    def _report(self, subject: Any) -> None:
        trainer = getattr(subject, "trainer", None)
        number = subject.epoch if trainer is None else trainer.current_epoch
        if number is not None:
            self._loop.epoch_begins(int(number + _ROUNDING))
