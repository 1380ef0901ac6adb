"""What is seen of a step that ended of late, wherever it is read?"""

from __future__ import annotations

from typing import Final, NamedTuple

MOST_STEPS: Final = 60
"""Steps of a rank that are looked at: enough for a mean, few enough to be of now."""


class StepSeen(NamedTuple):
    """One step of one rank; times are Unix time."""

    number: int
    start_ns: int
    end_ns: int
    duration_ns: int
    """Without phases and checkpoints inside it."""
    waited_ns: int
    """For data, in its own thread."""
    samples: int | None
    tokens: int | None
