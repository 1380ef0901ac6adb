"""What is found out about one step: the shapes of the answers, as ``--json`` prints them."""

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


class Section(msgspec.Struct, frozen=True, kw_only=True):
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
    sections: list[Section]
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
        return any(one.spans for one in self.ranks)
