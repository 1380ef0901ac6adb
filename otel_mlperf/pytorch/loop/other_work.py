"""Calls of libraries whose forwards belong to no step and no validation.

The statistics of normalization layers are computed from training batches without gradients, and a
policy plays in evaluation mode to collect what it learns from: both look like a validation.
"""

from __future__ import annotations

from typing import Any

from otel_mlperf.pytorch.loop.moments import LoopMoment


class OtherWork(LoopMoment):
    """One call of that kind: a section of its own, in which no step or validation begins."""

    def _begins(self, subject: Any) -> None:
        self._loop.break_off()
        super()._begins(subject)
