"""One point of a curve, as trackers of experiments draw them."""

from __future__ import annotations

from typing import Literal

import msgspec

ScalarKind = Literal["step", "value", "reading", "finding", "result", "outcome"]


class ScalarItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Value of a curve at one step: a duration, or what was logged, read or found by then.

    At a process's end also its results and its outcome.
    """

    kind: ScalarKind
    name: str
    """For a step its measure, else its name in the run's tables."""
    rank: int | None
    """None: of the node."""
    restart: int = 0
    phase: str = ""
    labels: dict[str, str] = {}
    number: int | None = None
    """Number of the step that it belongs to; otherwise of the last step that had ended."""
    time_ns: int
    """Unix time."""
    value: float
    text: str = ""
    """For a finding: its summary and action. For an outcome: its name."""
