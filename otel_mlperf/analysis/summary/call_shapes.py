"""Data types of the durations of section calls, as ``--json`` prints them."""

from __future__ import annotations

import msgspec


class CallFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one section at one place that ended, on all ranks."""

    name: str
    category: str
    phase: str
    """Of those in steps."""
    path: str
    """Outside steps, names from below the run."""
    in_step: bool
    beside: bool
    """Of those in steps: on another thread or task than the step."""
    count: int
    errors: int
    """Those that ended in one."""
    sum_ns: int
    mean_ns: float
    deviation_ns: float
    """Standard deviation: root of the mean square of the distance from the mean."""
    min_ns: int
    p50_ns: float
    p95_ns: float
    p99_ns: float
    max_ns: int
    error_ratio: float
    """By how much of itself a quantile may be off at most; all other figures are exact."""
    bound_s: float | None
    """How long a call is to take at most; None: the program does not say."""
    within: int | None
    """Calls that took no longer, and did not fail."""
    within_share: float | None
