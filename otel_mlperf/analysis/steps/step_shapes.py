"""Data types of one step, one request and the mean step, as ``--json`` prints them."""

from __future__ import annotations

from typing import Any

import msgspec

from otel_mlperf.analysis.profiles.section_operators import Operator  # noqa: TC001 - msgspec reads it


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled span; parents come before their children."""

    name: str
    category: str
    depth: int
    span_id: str
    start_ns: int
    """Time since the start of its rank's step; outside steps, of its process."""
    duration_ns: int
    """Duration; for a roll-up, the sum."""
    self_ns: int
    """Time in no child of the same thread."""
    thread: str
    beside: bool
    """Whether it ran on another thread or task than the step."""
    is_error: bool
    kind: str
    """``section``, ``segment`` (of a long-running section) or ``rollup`` (of many sections)."""
    attributes: dict[str, Any]
    operators: list[Operator] = []
    """Profiled operators directly under it, by name; empty without a profiler, or if not
    requested."""


class StepSection(msgspec.Struct, frozen=True, kw_only=True):
    """A section of a measured step, by name."""

    name: str
    count: int
    sum_ns: int
    self_ns: int
    beside: bool
    """Costs the step no time: on another thread or task, or a part of a data wait."""
    is_part: bool = False
    """Whether it is a part of a data wait, whose time contains it."""
    inside: str = ""
    """Enclosing section of a garbage collection, of an aggregated section, or of a part."""
    aggregate: bool = False
    """Whether it is only aggregated: it has no span."""
    min_ns: int | None = None
    max_ns: int | None = None
    """Shortest and longest call; None: in no span."""


class StepOnGpu(msgspec.Struct, frozen=True, kw_only=True):
    """GPU time of a step on one rank."""

    gpu_ns: int
    """Time from its start to its end on the device."""
    idle_ns: int | None
    """Part of it in no section that gives the device work; None: no section does."""
    paced_by: str
    """``host`` or ``device``: which one set most of the pace; empty: not known."""


class StepMark(msgspec.Struct, frozen=True, kw_only=True):
    """A point in a step that the program marked."""

    name: str
    after_ns: int
    """Time since the start of the step."""


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step on one rank."""

    rank: int
    duration_ns: int
    """Duration without ``outside_ns``."""
    outside_ns: int
    """Time between its start and end that is not the step's: a validation, the profiler's work."""
    outside: list[str]
    """Names of what took it, as far as their spans were sampled."""
    kept: str | None
    """Reason for which its spans were sampled; None: it was only measured."""
    is_error: bool
    samples: int | None
    tokens: int | None
    sections: list[StepSection]
    spans: list[Span]
    gpu: StepOnGpu | None = None
    """None: its GPU time is not known."""
    marks: list[StepMark] = []
    """Points in it that the program marked by ``run.mark()``."""


class StepFindings(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="step/1"):
    """One step on all ranks."""

    id: str
    short_id: str
    number: int
    phase: str
    """Empty for a step that only a profiler's annotation shows."""
    restart: int
    n: int
    epoch: int | None
    trace_id: str
    ranks: list[RankStep]
    nearby: list[int]
    """Numbers of the nearest steps with spans, if this step has none."""
    chosen: bool = False
    """Whether no number was requested: then it is the slowest step with spans."""
    kept: list[int] = []
    """Numbers of the first steps with spans, if no number was requested."""

    @property
    def is_kept(self) -> bool:
        """Return whether any rank sampled its spans."""
        return any(rank.spans for rank in self.ranks)


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of one rank outside steps."""

    rank: int
    duration_ns: int
    """Time from the start of its process to its end; while it runs, to the end of its last
    section."""
    spans: list[Span]


class RunTrace(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="run_trace/1"):
    """The trace of a run that has no steps: the run itself and its sections."""

    id: str
    short_id: str
    name: str
    restart: int
    trace_id: str
    ranks: list[RankTrace]


class RequestTrace(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="request/1"):
    """One request with its spans."""

    id: str
    short_id: str
    name: str
    request_id: str | None
    """Id that the program gave it."""
    number: int
    """Number among the requests with sampled spans, from 1 in the order of their starts."""
    kept_requests: int
    trace_id: str
    rank: int
    restart: int
    started_ns: int
    """Unix time."""
    duration_ns: int
    is_error: bool
    kept: str
    """Reason for which its spans were sampled."""
    chosen: bool
    """Whether none was requested: then it is the slowest request with sampled spans."""
    spans: list[Span]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A section's own time in one step, over all steps behind the figures."""

    name: str
    """Displayed name: ``data wait``, a section's name, ``untracked``."""
    category: str
    mean_ns: float
    p95_ns: int | None
    """None for several sections together."""
    share: float
    """Share of the mean step, 0.0 to 1.0. Rows that are not ``beside`` sum to 1."""
    beside: bool = False
    """Costs the step no time: on another thread or task, or a part of a data wait."""
    aggregate: bool = False
    inside: str = ""
    """For garbage collections: the section that contains most of their time.

    For a row beside the step: the data wait that contains it, such as ``data wait``.
    """


class RankFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Step figures of one rank."""

    rank: int
    count: int
    """Number of steps behind the figures."""
    mean_ns: float
    sections: dict[str, float]
    """Mean self time in nanoseconds by displayed name."""


class StandOut(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that takes far longer than the median of the ranks."""

    rank: int
    more_ns: dict[str, float]
    """Excess in each of its slow sections, largest first."""


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Step figures of one phase."""

    phase: str
    count: int
    """Steps of one rank, including the warm-up."""
    mean_ns: float
    p50_ns: int
    p95_ns: int
    samples_per_s: float | None
    """Samples of all ranks divided by the time of all steps; None: no step reports its samples."""
    tokens_per_s: float | None
    rows: list[Row]
    ranks: list[RankFigures]
    stand_outs: list[StandOut]


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """Warm-up: the first step of each process, excluded because it was far longer."""

    number: int
    duration_ns: int
    """Duration on the slowest rank."""


class AggregateTotal(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of an aggregated section over the run and all ranks."""

    name: str
    category: str
    enclosing: str
    phase: str
    beside: bool
    """On another thread or task than its surroundings, or in a forked child: no part of
    their time."""
    count: int
    sum_ns: int
    self_ns: int
    """Time without other sections inside."""
    min_ns: int
    max_ns: int


class Slowest(msgspec.Struct, frozen=True, kw_only=True):
    """The slowest step, of those that no profiler slowed down, if there are any."""

    number: int
    rank: int
    duration_ns: int
    section: str
    """Its largest row."""
    section_ns: int
    kept: bool
    """Whether its spans were sampled."""
    profiled: bool
    """Whether a profiler slowed it down: there are no other steps."""
    kept_number: int | None
    """The slowest of the steps with sampled spans."""
    collection_ns: int = 0
    """Garbage collections of a millisecond or more in it, on any thread."""
    collection_in: str = ""
    """Section that contains most of that time; empty: it was on another thread."""
