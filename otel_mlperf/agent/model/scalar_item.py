"""Points of the curves in experiment trackers."""

from __future__ import annotations

from typing import Literal

import msgspec

ScalarKind = Literal["step", "value", "reading", "finding", "result", "outcome"]


class ScalarItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Point of a curve: a step duration, logged value, sensor reading or finding at one step.

    The numeric results and the outcome of a process also become such points when it ends.
    """

    kind: ScalarKind
    name: str
    """For a step: the name of the measure. Otherwise: the name in the run's tables."""
    rank: int | None
    """Rank to which the point belongs; None for the node."""
    restart: int = 0
    phase: str = ""
    labels: dict[str, str] = {}
    number: int | None = None
    """Number of the step to which the point belongs, or of the last step that had ended at
    ``time_ns``. None until that step is known."""
    time_ns: int
    """Unix time in ns."""
    value: float
    text: str = ""
    """For a finding: its summary and action. For an outcome: the name of the outcome."""
