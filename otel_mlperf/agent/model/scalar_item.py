"""One point of a curve, as trackers of experiments draw them."""

from __future__ import annotations

from typing import Literal

import msgspec

ScalarKind = Literal["step", "value", "reading", "finding", "result", "outcome"]


class ScalarItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One value at one step: how long that took, what was logged, read or found by then.

    At a process's end also what came out of it, and how it ended.
    """

    kind: ScalarKind
    name: str
    """Of a step its measure, else the name under which it is in the run's tables."""
    rank: int | None
    """None: of the node."""
    restart: int = 0
    phase: str = ""
    labels: dict[str, str] = {}
    number: int | None = None
    """Of the step that it belongs to; of what belongs to none: of the last that had ended."""
    time_ns: int
    """Unix time."""
    value: float
    text: str = ""
    """Of a finding: what is the case, and what to do. Of an outcome: its word."""
