"""Data types of one step, one request and the mean step, as ``--json`` prints them."""

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
    """After the start of its rank's step; outside steps, of its process."""
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
    """Takes nothing from the step: on another thread or task, or a part of a wait for data."""
    is_part: bool = False
    """A part of the wait for data that it was in, whose time contains it."""
    inside: str = ""
    """The section that it was in: of a garbage collection, of what is only added up, of a part."""
    aggregate: bool = False
    """Only added up: it has no span."""
    min_ns: int | None = None
    max_ns: int | None = None
    """Its shortest and longest; None: of what is in no span."""


class StepOnGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A step on one rank's GPU."""

    gpu_ns: int
    """From its begin to its end on the device."""
    idle_ns: int | None
    """Of that, in no section that gives the device work; None: there is no such section."""
    paced_by: str
    """``host`` or ``device``: who set most of the pace; empty: it is not known."""


class StepMark(msgspec.Struct, frozen=True, kw_only=True):
    """A point in a step that the program marked."""

    name: str
    after_ns: int
    """From the begin of the step."""


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
    gpu: StepOnGpu | None = None
    """None: it is not known when a GPU was in it."""
    marks: list[StepMark] = []
    """Points in it that the program marked by ``run.mark()``."""


class StepFindings(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="step/1"):
    """One step of all ranks."""

    id: str
    short_id: str
    number: int
    phase: str
    """Empty of a step that only a profiler's annotation shows."""
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


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank did outside steps."""

    rank: int
    duration_ns: int
    """From the start of its process to its end; while it runs, to the end of its last section."""
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
    """That the program gave it."""
    number: int
    """Among the requests whose spans were kept, from 1 in the order of their starts."""
    kept_requests: int
    trace_id: str
    rank: int
    restart: int
    started_ns: int
    """Unix time."""
    duration_ns: int
    is_error: bool
    kept: str
    """Why its spans were kept."""
    chosen: bool
    """Nobody asked for one: it is the slowest whose spans were kept."""
    spans: list[Span]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A section's own time in one step, over all steps that the figures are about."""

    name: str
    """As shown: ``data wait``, a section's name, ``not in a span``."""
    category: str
    mean_ns: float
    p95_ns: int | None
    """None where several are taken together."""
    share: float
    """Of the mean step; 0.0 to 1.0. The rows that are not beside add up to 1."""
    beside: bool = False
    """Takes nothing from the step: on another thread or task, or a part of a wait for data."""
    aggregate: bool = False
    inside: str = ""
    """Of garbage collections: the section that most of their time fell into.

    Of a row beside: the wait for data that it is a part of, such as ``data wait``.
    """


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
    """Over all ranks: their samples / the time of all steps; None: no step says what it took."""
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
    """On another thread or task than what is around, or in a forked child: no part of its time."""
    count: int
    sum_ns: int
    self_ns: int
    """Without what other sections inside took."""
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
    collection_ns: int = 0
    """Garbage collections in it of a millisecond and more, on whichever thread."""
    collection_in: str = ""
    """The section that most of that fell into; empty: it was on another thread."""
