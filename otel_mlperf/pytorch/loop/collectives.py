"""When does the program itself ask for a collective in a step?

Those of DDP, FSDP and of functions that are seen anyway are part of what asks for them. Of one that
goes on by itself (``async_op=True``) the section has the call.
"""

from __future__ import annotations

from typing import Any, Final

from otel_mlperf.pytorch.loop.moments import UNSEEN, LoopMoment

COLLECTIVES: Final = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier",
)  # fmt: skip
"""Sections of the category communication, by their names."""


class Collective(LoopMoment):
    """A collective of a step; outside of steps, such as before the first one, it is none."""

    def of(self, subject: Any = None) -> Any:
        """The gate for this call; one inside another moment is a part of that."""
        if self._loop.depth or not self._loop.step.is_open:
            return UNSEEN
        return super().of(subject)

    def _settle(self, subject: Any) -> None:
        """What is paused goes on: in a validation, ranks agree on its result."""
