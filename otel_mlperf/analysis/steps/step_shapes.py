"""What is found out about one step, or about the usual one: the shapes of the answers.

As ``--json`` prints them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from otel_mlperf.analysis.profiles.section_operators import Operator  # noqa: TC001 - msgspec reads it


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One kept span; parents come before their children."""

    name: str
    category: str
    depth: int
    span_id: str
    start_ns: int
    """After the start of its rank's step."""
    duration_ns: int
    """Of a roll-up, the sum."""
    self_ns: int
    """In no child of the same thread."""
    thread: str
    beside: bool
    """On another thread or task than the step."""
    is_error: bool
    kind: str
    """``section``, ``segment`` (of one that is open for long) or ``rollup`` (of many)."""
    attributes: dict[str, Any]
    operators: list[Operator] = []
    """What a profiler saw directly under it, by name; empty where none was on, or nobody asked."""


class StepSection(msgspec.Struct, frozen=True, kw_only=True):
    """A section of a measured step by name."""

    name: str
    count: int
    sum_ns: int
    self_ns: int
    beside: bool


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step on one rank."""

    rank: int
    duration_ns: int
    """Without ``outside_ns``."""
    outside_ns: int
    """Time between its begin and end that belongs to others: a validation, the profiler's work."""
    outside: list[str]
    """What took it, as far as spans of it were kept."""
    kept: str | None
    """Why its spans were kept; None: it was measured only."""
    is_error: bool
    samples: int | None
    tokens: int | None
    sections: list[StepSection]
    spans: list[Span]


class StepFindings(msgspec.Struct, frozen=True, kw_only=True):
    """One step of all ranks."""

    id: str
    short_id: str
    number: int
    phase: str
    restart: int
    n: int
    epoch: int | None
    trace_id: str
    ranks: list[RankStep]
    nearby: list[int]
    """Numbers of the nearest steps with spans, if this one has none."""
    chosen: bool = False
    """Nobody asked for a number: it is the slowest step with spans."""
    kept: list[int] = []
    """Numbers of the first steps with spans, if nobody asked for one."""

    @property
    def is_kept(self) -> bool:
        """Whether any rank kept its spans."""
        return any(rank.spans for rank in self.ranks)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A section's own time in one step, over all steps that the figures are about."""

    name: str
    """As shown: ``data wait``, a section's name, ``not in a span``."""
    category: str
    mean_ns: float
    p95_ns: int | None
    """None where single steps are not known: aggregated sections."""
    share: float
    """Of the mean step; 0.0 to 1.0. The rows that are not beside add up to 1."""
    beside: bool = False
    """Ran on another thread or task, while the step went on."""
    aggregate: bool = False


class RankFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one rank."""

    rank: int
    count: int
    """Those that the figures are about."""
    mean_ns: float
    sections: dict[str, float]
    """Mean self time in nanoseconds by name, as shown."""


class StandOut(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that takes far longer than the median of the ranks."""

    rank: int
    more_ns: dict[str, float]
    """By how much in each of the sections in which it does, the most first."""


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of the phase that the figures are about."""

    phase: str
    count: int
    """Steps of one rank, the warm-up included."""
    mean_ns: float
    p50_ns: int
    p95_ns: int
    samples_per_s: float | None
    """Over all ranks; None if no step says how many samples it took."""
    tokens_per_s: float | None
    rows: list[Row]
    ranks: list[RankFigures]
    stand_outs: list[StandOut]


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """The first step of each process, left out of the figures because it was far longer."""

    number: int
    duration_ns: int
    """Of the slowest rank."""


class AggregateTotal(msgspec.Struct, frozen=True, kw_only=True):
    """A section that is only added up: totals of the run, over all ranks."""

    name: str
    category: str
    enclosing: str
    phase: str
    beside: bool
    """Added up by forked children: no part of what their rank's own process did."""
    count: int
    sum_ns: int
    min_ns: int
    max_ns: int


class Slowest(msgspec.Struct, frozen=True, kw_only=True):
    """The longest step, of those that no profiler has slowed down, if there are any."""

    number: int
    rank: int
    duration_ns: int
    section: str
    """Its largest row."""
    section_ns: int
    kept: bool
    """Whether its spans were kept."""
    profiled: bool
    """Whether a profiler has slowed it down: there are no other steps."""
    kept_number: int | None
    """The longest of those whose spans were kept."""
