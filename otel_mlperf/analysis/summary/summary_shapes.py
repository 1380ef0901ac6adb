"""What is found out about a run: the shapes of the answers, as ``--json`` prints them.

Times are nanoseconds; of several ranks they are means over the ranks, unless they say otherwise.
"""

from __future__ import annotations

from typing import Any

import msgspec

from otel_mlperf.findings.finding import Finding  # noqa: TC001 - msgspec reads it


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


class Steps(msgspec.Struct, frozen=True, kw_only=True):
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


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    """A share of the time that was not spent in steps."""

    name: str
    sum_ns: float
    count: int | None = None
    """Times on one rank; None for what is left over."""


class Aggregate(msgspec.Struct, frozen=True, kw_only=True):
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


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the section tree of a run without steps, parents before children."""

    name: str
    depth: int
    count: int
    sum_ns: float
    self_ns: float
    share: float
    """Its own time as a share of the run's."""
    beside: bool = False


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """How and where the first rank that did not finish came to an end."""

    rank: int
    step: int | None
    section: str
    type: str
    message: str


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU over the time of the run; None: it does not say."""

    id: str
    """Its UUID."""
    name: str
    busy_share: float | None
    """Mean share of the time in which a kernel ran."""
    memory_bytes: float | None
    """The most in use."""
    temperature_c: float | None
    """The highest, in degrees Celsius."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of the run over its time; several nodes are taken together."""

    cpus: float | None
    """That the processes may use."""
    cpu_share: float | None
    memory_bytes: float | None
    memory_limit_bytes: float | None
    gpus: list[Gpu]


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A device that stopped answering."""

    id: str
    name: str
    """``gpu0``."""
    rank: int
    """Of the rank that uses it; of one that no rank uses, the first on its node."""
    count: int
    """How often."""
    after_ns: int
    """From the start of the run to the first time."""
    absent_ns: int | None
    """How long the last time took; None: it did not come back."""
    text: str
    """What the driver said the first time."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One label set of a counter, gauge or histogram of the program, all ranks together."""

    name: str
    kind: str
    """``counter``, ``gauge`` or ``histogram``."""
    unit: str
    labels: dict[str, str]
    value: float = 0.0
    """A counter's total, a histogram's sum; a gauge as it was set last, on any rank."""
    count: int | None = None
    """Values of a histogram."""


class Telemetry(msgspec.Struct, frozen=True, kw_only=True):
    """How well the run was recorded."""

    lost: int | None
    """Items that no destination can get any more; None if nobody has counted yet."""
    pending: int
    """Items that are still on their way to a server."""
    sections_lost: int
    """Sections that found no room in shared memory: the figures do not know of them."""
    overhead: float | None
    """Share of the time that recording took."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All that the closing text says, exact for the whole run."""

    id: str
    short_id: str
    name: str
    path: str
    outcome: str
    restarts: int
    rank: int | None
    """The only rank that the figures are about; None: all of them."""
    ranks: int
    world_size: int
    nodes: int
    started_ns: int
    duration_ns: int
    """From the first start to the last end; of a running one, up to its last sign of life."""
    has_gpu: bool
    failure: Failure | None
    params: dict[str, Any]
    result: dict[str, Any]
    last: dict[str, float]
    """The last value logged by name."""
    counted: dict[str, float]
    """The program's own counters and histograms by name, all ranks and labels together."""
    series: list[Series]
    """The same with their labels, and its gauges."""
    steps: Steps | None
    warm_up: WarmUp | None
    outside_ns: float
    outside_share: float
    outside: list[Outside]
    beside: list[Outside]
    """On other threads and tasks, in no step: no part of the time outside."""
    slowest: Slowest | None
    machine: Machine | None
    losses: list[Loss]
    windows: int
    """Profiler windows that were recorded, converted or not."""
    windows_left_out: dict[str, int]
    """How many were not, by the reason in words."""
    profiled_steps: int
    """Steps, of those that the figures are about, that a profiler has slowed down."""
    tree: list[Branch]
    aggregates: list[Aggregate]
    telemetry: Telemetry
    next: str
    """A command that says more."""
    findings: list[Finding] = []
    """What is worth changing, worst first."""
