"""Points of curves for experiment trackers."""

from __future__ import annotations

from typing import Literal

import msgspec

ScalarKind = Literal["step", "value", "reading", "finding", "result", "outcome"]


class ScalarItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Value of a curve at one step: a step duration, logged value, reading or finding.

    When a process ends, its results and its outcome are points as well.
    """

    kind: ScalarKind
    name: str
    """For a step: its measure. Otherwise: the name in the run's tables."""
    rank: int | None
    """None for the node."""
    restart: int = 0
    phase: str = ""
    labels: dict[str, str] = {}
    number: int | None = None
    """Number of the step to which it belongs, or of the last step that had ended by then."""
    time_ns: int
    """Unix time."""
    value: float
    text: str = ""
    """For a finding: its summary and action. For an outcome: its name."""
