"""Data types of the durations and the resource use of calls, as ``--json`` prints them."""

from __future__ import annotations

import msgspec


class CallFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of all finished calls of one section in one place (phase or path), on all ranks."""

    name: str
    category: str
    phase: str
    """Phase of the steps, for calls in steps."""
    path: str
    """For calls outside steps: section names from the outermost section to this one."""
    in_step: bool
    beside: bool
    """For calls in steps: whether on another thread or task than the step."""
    count: int
    errors: int
    """Calls that ended in an error."""
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
    """Maximum relative error of a quantile; all other figures are exact."""
    bound_s: float | None
    """Maximum duration that the program declares for a call; None: not declared."""
    within: int | None
    """Number of calls that did not exceed the bound and did not fail."""
    within_share: float | None


class UseFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Exact statistics of one measure, over all calls of a section with a known value."""

    count: int
    total: int
    mean: float
    least: int
    most: int
    variance: float
    """Mean square of the distance from the mean."""


class SectionUse(msgspec.Struct, frozen=True, kw_only=True):
    """Resource use of one section's calls in one place, on all ranks, including nested sections."""

    name: str
    category: str
    phase: str
    path: str
    """For calls outside steps: section names from the outermost section to this one."""
    in_step: bool
    beside: bool
    """Whether on another thread or task than the enclosing section."""
    calls: int
    """Number of measured calls."""
    figures: dict[str, UseFigures]
    """Statistics of ``cpu_ns``, ``voluntary_switches``, ``involuntary_switches``, ``read_bytes``,
    ``written_bytes`` (of the thread), ``memory_before_bytes``, ``memory_after_bytes``,
    ``memory_growth_bytes``, ``memory_peak_bytes``, ``cuda_growth_bytes``, ``cuda_peak_bytes`` (of
    the process) and ``gpu_ns`` (from start to end on the GPU). Measures that no call has are
    absent."""
