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
    """Time since the start of the rank's step; outside steps, since the start of the process."""
    duration_ns: int
    """Duration; for a roll-up, the sum over its sections."""
    self_ns: int
    """Time without children on the same thread or task."""
    thread: str
    beside: bool
    """Whether it ran on another thread or task than the step."""
    is_error: bool
    kind: str
    """``section``, ``segment`` (of a long-running section) or ``rollup`` (of many sections)."""
    attributes: dict[str, Any]
    operators: list[Operator] = []
    """Profiled operators directly under the span, by name; empty without a profiler, or if not
    requested."""


class StepSection(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one section in one step on one rank."""

    name: str
    count: int
    sum_ns: int
    self_ns: int
    beside: bool
    """Whether it adds no time to the step: on another thread or task, or a part of a data wait."""
    is_part: bool = False
    """Whether it is a part of a data wait, and included in the time of that wait."""
    inside: str = ""
    """Enclosing section of a garbage collection, of an aggregated section, or of a part."""
    aggregate: bool = False
    """Whether it is only aggregated: it has no span."""
    min_ns: int | None = None
    max_ns: int | None = None
    """``min_ns`` and ``max_ns``: shortest and longest call; None for untracked time."""


class StepOnGpu(msgspec.Struct, frozen=True, kw_only=True):
    """GPU time of a step on one rank."""

    gpu_ns: int
    """Time from the start to the end of the step on the device."""
    idle_ns: int | None
    """Part of ``gpu_ns`` outside sections that launch device work; None: no section launches
    any."""
    paced_by: str
    """Side that set the pace for over half of the time, ``host`` or ``device``; empty: unknown."""


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
    """Time between start and end that is not counted as step time: a validation, profiler work."""
    outside: list[str]
    """Names of the sections in that time, as far as their spans were sampled."""
    kept: str | None
    """Reason why the step's spans were sampled; None: not sampled, only measured."""
    is_error: bool
    samples: int | None
    tokens: int | None
    sections: list[StepSection]
    spans: list[Span]
    gpu: StepOnGpu | None = None
    """None: the GPU time of the step is unknown."""
    marks: list[StepMark] = []
    """Points in the step that the program marked by ``run.mark()``."""


class StepFindings(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="step/1"):
    """One step on all ranks."""

    id: str
    short_id: str
    number: int
    phase: str
    """Empty for a step that is known only from a profiler's annotation."""
    restart: int
    n: int
    epoch: int | None
    trace_id: str
    ranks: list[RankStep]
    nearby: list[int]
    """Numbers of the nearest steps with spans, if this step has none."""
    chosen: bool = False
    """Whether the slowest step with spans was chosen, because no number was requested."""
    kept: list[int] = []
    """Numbers of the first steps with spans, if no number was requested."""

    @property
    def is_kept(self) -> bool:
        """Return whether any rank sampled spans of the step."""
        return any(rank.spans for rank in self.ranks)


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """Spans of one rank outside steps."""

    rank: int
    duration_ns: int
    """Time from the start to the end of the process; while it runs, to the end of its last
    section."""
    spans: list[Span]


class RunTrace(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="run_trace/1"):
    """Trace of a run without steps: the run itself and its sections."""

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
    """Id assigned by the program; None: no id was assigned."""
    number: int
    """Number among the requests with sampled spans, from 1, by start time."""
    kept_requests: int
    trace_id: str
    rank: int
    restart: int
    started_ns: int
    """Unix time."""
    duration_ns: int
    is_error: bool
    kept: str
    """Reason why the spans of the request were sampled."""
    chosen: bool
    """Whether the slowest request with sampled spans was chosen, because no id was requested."""
    spans: list[Span]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Self time of one section per step, over all evaluated steps."""

    name: str
    """Displayed name: ``data wait``, a section's name, ``untracked``."""
    category: str
    mean_ns: float
    p95_ns: int | None
    """None: unknown, or the row is the sum of several sections."""
    share: float
    """Share of the mean step, 0.0 to 1.0. Rows that are not ``beside`` sum to 1."""
    beside: bool = False
    """Whether it adds no time to the step: on another thread or task, or a part of a data wait."""
    aggregate: bool = False
    inside: str = ""
    """For garbage collections: the section that contains most of their time.

    For a ``beside`` row: the data wait that contains it; empty: no data wait.
    """


class RankFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Step figures of one rank."""

    rank: int
    count: int
    """Number of evaluated steps."""
    mean_ns: float
    sections: dict[str, float]
    """Mean self time in nanoseconds by displayed name."""


class StandOut(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that takes far longer than the median of the ranks."""

    rank: int
    more_ns: dict[str, float]
    """Excess over the median in each slow section, in ns per step, largest first."""


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
    """Whether on another thread or task than the enclosing section, or in a forked child: not part
    of the enclosing section's time."""
    count: int
    sum_ns: int
    self_ns: int
    """Time without other sections inside."""
    min_ns: int
    max_ns: int


class Slowest(msgspec.Struct, frozen=True, kw_only=True):
    """The slowest step; if possible, one that no profiler slowed down."""

    number: int
    rank: int
    duration_ns: int
    section: str
    """Section with most self time in the step."""
    section_ns: int
    kept: bool
    """Whether spans of the step were sampled."""
    profiled: bool
    """Whether a profiler slowed the step down: only if all evaluated steps are profiled."""
    kept_number: int | None
    """Number of the slowest step with sampled spans; None: no step has any."""
    collection_ns: int = 0
    """Time of garbage collections of at least 1 ms in the step, on any thread."""
    collection_in: str = ""
    """Section that contains most of ``collection_ns``; empty: on another thread."""
