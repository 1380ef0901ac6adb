"""Rows of the tables that the agent writes: steps, sections, spans, values and readings of a run.

Times are Unix nanoseconds, ids hexadecimal text, durations nanoseconds.
"""

from otel_mlperf.tables.row import Int32, RankRow, Row, Word


class ProcessRow(RankRow, frozen=True, kw_only=True):
    """State of a process: of several rows of one rank, restart and pid the last written counts."""

    local_rank: Int32
    world_size: Int32
    pid: int
    host: Word
    service: Word
    start_ns: int
    end_ns: int
    """End of the process; 0 while it is running."""
    outcome: Word
    error_type: Word
    error_message: str
    error_step: int | None
    error_section: Word
    result: str
    """JSON."""
    sections: int
    overhead_ns: int
    instance_id: str
    has_gpu: bool


class StepRow(RankRow, frozen=True, kw_only=True):
    """One row for each step that ended."""

    phase: Word
    """``train``, ``validate``, ``test`` or ``predict``."""
    n: int
    """Index of the step in this process and phase, from 0."""
    number: int
    """Step number of the program."""
    epoch: int | None
    """Epoch of the step."""
    start_ns: int
    """Start of the step."""
    end_ns: int
    """End of the step."""
    duration_ns: int
    """Duration without phases and checkpoints inside the step."""
    self_ns: int
    """Part of the duration outside all sections."""
    samples: int | None
    """Number of samples in its batches."""
    tokens: int | None
    """Number of tokens in its batches."""
    elements: int | None = None
    """Elements of the largest tensor of each of its batches; missing: they contain no tensor."""
    flops: int | None = None
    """Operations of its models; missing: not all of their calls were counted."""
    error: bool
    """Whether an exception ended it."""
    kept: Word | None
    """Reason why its spans are sampled; missing: they are not."""
    trace_id: str
    """Id of its trace."""


class SectionRow(RankRow, frozen=True, kw_only=True):
    """One row for each step, name and *beside*; outside steps one for each flush and path.

    Rows outside steps have no ``n``.
    """

    phase: Word
    """Phase of the step; outside steps empty, or the phase in which an aggregated section ran."""
    n: int | None
    """Index of the step; missing outside steps."""
    number: int | None
    """Number of the step; missing outside steps."""
    name: Word
    """Name of the section."""
    category: Word
    """Category of its work."""
    parent: Word = ""
    """Name of the directly enclosing section."""
    path: Word = ""
    """Names from below the run; those of aggregated sections come after a double slash. In a step
    it is set only for parts of a wait for data: names from that wait."""
    beside: bool = False
    """Whether it ran on another thread or task than the enclosing section, or (in a step, with a
    ``path``) is a part of the wait for data ``parent``."""
    aggregate: bool = False
    """Whether it is an aggregated section."""
    count: int
    """Number of calls."""
    sum_ns: int
    """Sum of their durations."""
    self_ns: int
    """Part of the sum outside the sections inside it."""
    min_ns: int
    """Shortest duration."""
    max_ns: int
    """Longest duration."""
    start_ns: int
    """Start of the first call."""


class PlaceRow(RankRow, frozen=True, kw_only=True):
    """Place of a section: its calls with equal values add up."""

    phase: Word
    name: Word
    category: Word
    path: Word
    """Outside steps, names from below the run."""
    beside: bool
    in_step: bool


class ResourceRow(PlaceRow, frozen=True, kw_only=True):
    """One row for each flush, section, place and measure: the use of all calls in that time."""

    measure: Word
    """Key of one of ``names.MEASURES``."""
    count: int
    total: int
    least: int
    most: int
    spread: float
    """Sum of the squared distances from the mean."""


class DurationPlaceRow(PlaceRow, frozen=True, kw_only=True):
    """Place of calls whose durations add up."""

    bound_s: float | None
    """Maximum duration; missing: not declared."""
    minute_ns: int | None = None
    """Start of the minute in which they ended; only for requests."""


class DurationRow(DurationPlaceRow, frozen=True, kw_only=True):
    """One row for each flush, section and place: the durations of its calls in that time.

    Requests have one row for each minute in it: no other table has the time of each.
    """

    count: int
    errors: int
    within: int
    """Calls that were not longer than the bound and did not fail."""
    sum_ns: int
    min_ns: int
    max_ns: int
    spread: float
    """Sum of the squared distances from the mean, in ns²."""
    scale: Int32
    """Scale of the exponential histogram, in seconds."""
    zeros: int
    first_bucket: int
    counts: str
    """JSON: counts of its buckets, from the first one."""


class GpuStepRow(RankRow, frozen=True, kw_only=True):
    """One row for each step whose GPU time is known."""

    phase: Word
    n: int
    number: int
    device: Int32
    gpu_ns: int
    idle_ns: int | None
    """Missing: no section gave the device work."""
    host_paced_ns: int
    device_paced_ns: int
    """The pace of the rest of ``gpu_ns`` is unknown."""


class SpanRow(RankRow, frozen=True, kw_only=True):
    """One row for each span of the sampled traces; for profilers for each event and roll-up."""

    trace_id: str
    span_id: str
    parent_id: str
    name: Word
    category: Word
    phase: Word
    track: int
    """Thread ident or task number: spans of a track nest."""
    thread: Word
    thread_id: int | None
    """Native id of the thread, which profilers record."""
    start_ns: int
    end_ns: int
    status: Word
    interrupted: bool
    root_id: str
    n: int | None
    number: int | None
    epoch: int | None
    kept: Word
    attributes: str
    """JSON."""
    links: str
    """JSON: ``[[trace id, span id], ...]``; attributes and flags of those that have them follow."""
    events: str | None = None
    """JSON: ``[[time in ns, name, {attributes}], ...]``."""
    kind: Word
    """``event``: of a profiler; ``event_rollup``: several events, which are rows as well."""


class ValueRow(RankRow, frozen=True, kw_only=True):
    """One row for each value passed to ``log()``."""

    phase: Word
    """Phase in which it was logged."""
    name: Word
    """Name that the program gave it."""
    number: int | None
    """Number of the step; missing outside steps."""
    time_ns: int
    """Time at which it was logged."""
    value: float
    """Logged value."""


class MarkRow(RankRow, frozen=True, kw_only=True):
    """One row for each call of ``run.mark()``."""

    phase: Word
    """Phase in which it was set."""
    name: Word
    """Name that the program gave it (default: ``mark``)."""
    number: int
    """Number of the step, within its phase, that contains or follows the mark."""
    time_ns: int
    """Unix time at which it was set."""


class ReadingRow(Row, frozen=True, kw_only=True):
    """One row for each reading of process, host or device."""

    rank: Int32 | None
    """Rank of the process; missing: the reading is of the node."""
    restart: Int32
    """Number of earlier starts of this rank."""
    name: Word
    """Name of the metric: [metrics.md](metrics.md)."""
    labels: Word
    """JSON: device, kind, …"""
    time_ns: int
    """Time at which it was read."""
    value: float
    """Value in the unit of the metric."""


class InstrumentRow(RankRow, frozen=True, kw_only=True):
    """One row for each metric name of the program or PyTorch's allocator in the process."""

    name: Word
    unit: Word
    kind: Word
    """``counter``, ``gauge`` or ``histogram``, whose readings are ``<name>.count`` and ``.sum``."""


class WarningRow(Row, frozen=True, kw_only=True):
    """One row for each flush in which a warning held: the one that ends last contains all of it."""

    rank: Int32 | None
    """Missing: the warning is of the node."""
    restart: Int32
    id: Word
    """Id of its row in the table of findings."""
    labels: Word
    """JSON."""
    start_ns: int
    end_ns: int
    """Last time at which it held."""
    value: float
    """Worst value so far."""
    threshold: float
