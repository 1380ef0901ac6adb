"""After how many steps does a program go on that is resumed from a checkpoint?

Optimizers of the Adam family count their updates, one a step, and save that with their state: who
gives it back to one goes on behind that step. Others, as SGD, do not say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from otel_mlperf.pytorch.loop.moments import LoopMoment

_MOST_LOOKED_AT: Final = 8
"""Parameters: all of one optimizer have the same count, but for those that are updated rarely."""


class OptimizerPrepared(LoopMoment):
    """An optimizer is made to have a state: no section, and an update in it is none."""

    def _begins(self, subject: Any) -> None:
        pass


class OptimizerRestored(LoopMoment):
    """An optimizer is given a state: no section, the loop only hears of it."""

    def _begins(self, subject: Any) -> None:
        updates = count_updates(subject)
        if updates:
            self._loop.optimizer_restored(updates)


def count_updates(state: object) -> int:
    """Updates of an optimizer with that ``state_dict()``; 0: it does not say."""
    of_parameters = state.get("state") if isinstance(state, Mapping) else None
    if not isinstance(of_parameters, Mapping):
        return 0
    return max(map(_count, islice(of_parameters.values(), _MOST_LOOKED_AT)), default=0)


def _count(of_parameter: object) -> int:
    step: Any = of_parameter.get("step") if isinstance(of_parameter, Mapping) else None
    # Of a count on a device nobody is asked: that would wait for the device.
    device: Any = getattr(step, "device", None)
    if device is not None and (device.type != "cpu" or step.numel() != 1):
        return 0
    return int(step) if device is not None or isinstance(step, int | float) else 0
