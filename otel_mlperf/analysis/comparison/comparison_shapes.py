"""Data types of a comparison: the measures of a run, and the changes between two runs.

``--json`` prints these types. ``RunMeasures`` is also a file format: a baseline that is committed
next to the code.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from otel_mlperf.analysis.run.given_number import JsonNumber  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.steps.mean_estimates import (  # noqa: TC001 - msgspec reads it
    Estimate,
    Interval,
)

FORMAT: Final = 1
"""Version of the baseline file format; readers reject a higher version."""
Word = Literal["slower", "faster", "same", "unclear"]
KernelReason = Literal["speed", "count", "shape", "replaced", "new", "gone"]
"""Reason for a kernel's change: time per call at equal shapes, number of calls, shapes, replacement
by another kernel, or existence in one run only."""


ShapeBasis = Literal["inputs", "launch", ""]
"""Field of ``ShapeMeasures`` by which calls of two runs are matched; empty: none is known."""


class TimeMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Time measures of one section's self time per step, of the whole step, or of a call."""

    name: str
    """Name as a summary shows it."""
    category: str = ""
    steps: int
    """Steps that contain the section; outside steps, the number of its calls."""
    usual_ns: Estimate
    """Mean over the steps that contain the section, without the shortest and longest tenth."""
    mean_ns: Estimate
    """Mean over all steps, so that the sections sum to the step."""
    p50_ns: float
    p95_ns: float
    max_ns: float
    """``p50_ns``, ``p95_ns`` and ``max_ns`` are computed over the steps that contain the
    section."""


class ShapeMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a kernel with the same input shapes or launch parameters."""

    inputs: str = ""
    """Shapes and types of the operator's inputs; empty: not recorded."""
    launch: str = ""
    """Grid and block, or the bytes of a copy or message; empty: not recorded."""
    calls_per_step: float
    mean_ns: float


class KernelMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that one operator launched in one section, in the profiled steps of a run."""

    name: str
    section: str
    operator: str = ""
    """Operator that launched the kernel; empty: unknown."""
    calls_per_step: float
    mean_ns: float
    shapes: list[ShapeMeasures] = []
    """Shapes of all calls; calls without a recorded shape have empty strings as shape."""

    @property
    def per_step_ns(self) -> float:
        """Return the time of the kernel per step."""
        return self.calls_per_step * self.mean_ns


class RunMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """All measures of a run that a comparison needs."""

    format: int = FORMAT
    id: str
    short_id: str
    name: str
    outcome: str
    phase: str
    """Phase of the measured steps; empty: the run has no steps."""
    steps: int
    """Number of measured steps, on one rank."""
    left_out: dict[str, int]
    """Number of steps that are excluded from the measures, by reason."""
    times: list[TimeMeasures]
    """Measures of the step, then of its sections in their order."""
    calls: list[TimeMeasures] = []
    """Measures per call of sections outside steps, including requests; most total time first."""
    numbers: dict[str, float]
    """Known rates, memory and the run's time, by name; the name contains the unit."""
    params: dict[str, Any]
    result: dict[str, Any]
    last: dict[str, JsonNumber]
    machine: dict[str, Any]
    """Ranks, nodes, CPUs and GPUs."""
    kernels: list[KernelMeasures] = []
    """Kernels of the run's profiler windows; empty: it has none."""
    profiled_steps: int = 0
    """Number of profiled steps for the kernels' figures; 0: the windows contain no steps, and the
    kernels' figures *per step* are per window."""


class TimeChange(msgspec.Struct, frozen=True, kw_only=True):
    """Change of the time of one section, or of the step."""

    name: str
    category: str = ""
    before_ns: float | None
    """Mean over all steps; None: that run does not have the section."""
    after_ns: float | None
    usual: Interval | None
    """Change over the steps with the section, without the shortest and longest tenth; None: too few
    steps."""
    mean: Interval | None
    """Change of the mean over all steps."""
    by: Literal["usual", "mean"]
    """Interval on which the verdict (``word``) is based."""
    word: Word
    share: float
    """Change of the step caused by this section, as a share of the mean step before.

    Outside steps: change of the run caused by all its calls, as a share of the run before.
    """


class NumberChange(msgspec.Struct, frozen=True, kw_only=True):
    """Change of a number of the runs; None in a run without it."""

    name: str
    before: float | None
    after: float | None


class Differing(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter, result, machine property or logged value that differs between two runs."""

    what: Literal["param", "result", "machine", "last"]
    name: str
    before: Any
    after: Any


class KernelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel whose time in a profiled step changed."""

    name: str
    section: str
    operator: str = ""
    before_ns: float
    """Time per step; 0: the run did not have the kernel."""
    after_ns: float
    reason: KernelReason
    shapes: tuple[str, str] | None = None
    """For the reason *shape*: the shape whose calls decreased most, and the one with most new
    calls."""
    compared_by: ShapeBasis = ""
    """For the reason *speed*: property in which the compared calls are equal; empty: too little was
    recorded."""
    before: KernelMeasures | None
    after: KernelMeasures | None
    """Kernel in the second run; its name differs from ``before`` if another kernel does the same
    work."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="comparison/1"):
    """Differences of the second run from the first."""

    before: RunMeasures
    after: RunMeasures
    confidence: float
    """Joint confidence of all intervals."""
    times: list[TimeChange]
    """Changes of the step, then of its sections."""
    calls: list[TimeChange] = []
    """Changes per call of sections outside steps that both runs have, most time first."""
    numbers: list[NumberChange]
    differing: list[Differing]
    kernels: list[KernelChange]
    """Changed kernels: the largest slowdown first, the largest saving last."""
    kernels_ns: tuple[float, float] | None = None
    """Time of all kernels in a profiled step, before and after; None: a run was not profiled."""


class Comparisons(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="comparisons/1"
):
    """Several runs, each compared with the first."""

    comparisons: list[Comparison]
