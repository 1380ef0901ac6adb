"""Data types of a comparison: the measures of a run, and the changes between two runs.

They are shapes of answers as ``--json`` prints them. ``RunMeasures`` is also a file format: a
baseline that is committed next to the code.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from otel_mlperf.analysis.run.given_number import GivenNumber  # noqa: TC001 - msgspec reads it
from otel_mlperf.analysis.steps.estimates import (  # noqa: TC001 - msgspec reads it
    Estimate,
    Interval,
)

FORMAT: Final = 1
"""Version of a baseline file; a reader refuses a higher one."""
Word = Literal["slower", "faster", "same", "unclear"]
KernelReason = Literal["speed", "count", "shape", "replaced", "new", "gone"]
"""What changed of a kernel: how long a call of one shape takes, how many calls there are, what they
are given; or another kernel does it, or there is none on one side."""


ShapeBasis = Literal["inputs", "launch", ""]
"""Fields of ``ShapeMeasures``."""


class TimeMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one section's own time in a step, of the whole step, or of a call."""

    name: str
    """As a summary shows it."""
    category: str = ""
    steps: int
    """Those in which it was; outside steps its calls."""
    usual_ns: Estimate
    """In these, without the shortest and the longest tenth."""
    mean_ns: Estimate
    """Over all steps, so that the sections add up to the step."""
    p50_ns: float
    p95_ns: float
    max_ns: float
    """These three of the steps in which it was."""


class ShapeMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a kernel that had the same to do."""

    inputs: str = ""
    """Shapes and types of its operator's inputs; empty: not recorded."""
    launch: str = ""
    """Grid and block, or the bytes of a copy or message; empty: not recorded."""
    calls_per_step: float
    mean_ns: float


class KernelMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that one operator launched in one section, in the profiled steps of a run."""

    name: str
    section: str
    operator: str = ""
    """Empty: not known."""
    calls_per_step: float
    mean_ns: float
    shapes: list[ShapeMeasures] = []
    """Of all its calls; those of which nothing was recorded have a shape of empty texts."""

    @property
    def per_step_ns(self) -> float:
        """What it takes of a step."""
        return self.calls_per_step * self.mean_ns


class RunMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run that a comparison needs."""

    format: int = FORMAT
    id: str
    short_id: str
    name: str
    outcome: str
    phase: str
    """That the steps are of; empty: the run has none."""
    steps: int
    """That the times are about: on one rank."""
    left_out: dict[str, int]
    """Steps that they are not about, by the reason in words."""
    times: list[TimeMeasures]
    """Of the step first, then of its sections in their order."""
    calls: list[TimeMeasures] = []
    """Of a call of each section outside steps, requests too; most time first."""
    numbers: dict[str, float]
    """Rates, memory and the run's time by name, with its unit, as far as they are known."""
    params: dict[str, Any]
    result: dict[str, Any]
    last: dict[str, GivenNumber]
    machine: dict[str, Any]
    """Ranks, nodes, CPUs and GPUs."""
    kernels: list[KernelMeasures] = []
    """Of its profiler windows; empty: it has none."""
    profiled_steps: int = 0
    """That the kernels are about; 0: its windows name none, a *step* of a kernel is a window."""


class TimeChange(msgspec.Struct, frozen=True, kw_only=True):
    """By how much one section, or the step, takes longer."""

    name: str
    category: str = ""
    before_ns: float | None
    """Mean over all steps; None: it is not in that run."""
    after_ns: float | None
    usual: Interval | None
    """Of where it is, without the shortest and longest tenth; None: too little is known."""
    mean: Interval | None
    """Of all steps."""
    by: Literal["usual", "mean"]
    """Which of the two the word follows."""
    word: Word
    share: float
    """By how much the step takes longer for it: a share of the mean step before.

    Outside steps by how much the run takes longer for all of its calls: a share of the run before.
    """


class NumberChange(msgspec.Struct, frozen=True, kw_only=True):
    """A number that both runs have, or one of them."""

    name: str
    before: float | None
    after: float | None


class Differing(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not the same in both runs."""

    what: Literal["param", "result", "machine", "last"]
    name: str
    before: Any
    after: Any


class KernelChange(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that takes another time of a profiled step than before."""

    name: str
    section: str
    operator: str = ""
    before_ns: float
    """A step; 0: it was not there."""
    after_ns: float
    reason: KernelReason
    shapes: tuple[str, str] | None = None
    """Of the reason *shape*: that with most time only before, and only after."""
    compared_by: ShapeBasis = ""
    """Of *speed*: what calls had in common; empty: too little of it was recorded to tell."""
    before: KernelMeasures | None
    after: KernelMeasures | None
    """Of another name than ``before`` where another kernel does the same."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="comparison/1"):
    """What is different in the second of two runs."""

    before: RunMeasures
    after: RunMeasures
    confidence: float
    """That no interval at all leaves out the truth."""
    times: list[TimeChange]
    """Of the step first."""
    calls: list[TimeChange] = []
    """Of a call of each section outside steps that both runs have, most time first."""
    numbers: list[NumberChange]
    differing: list[Differing]
    kernels: list[KernelChange]
    """What costs most more first, then what saves most."""
    kernels_ns: tuple[float, float] | None = None
    """All kernels' time in a profiled step, before and after; None: not both were profiled."""


class Comparisons(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="comparisons/1"
):
    """Several runs, each compared with the first."""

    comparisons: list[Comparison]
