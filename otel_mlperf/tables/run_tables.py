"""Row types of the tables that the agent writes: steps, sections, spans, values, readings etc.

Times are in Unix nanoseconds, durations in nanoseconds; ids are hexadecimal text.
"""

from otel_mlperf.tables.row import Int32, RankRow, Row, Word


class ProcessRow(RankRow, frozen=True, kw_only=True):
    """State of a process: of rows with the same rank, restart and pid only the latest is valid."""

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
    """JSON: values passed to ``Run.result()``."""
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
    """Step number as reported by the program."""
    epoch: int | None
    """Epoch of the step."""
    start_ns: int
    """Start of the step."""
    end_ns: int
    """End of the step."""
    duration_ns: int
    """Duration of the step, without phases and checkpoints inside the step."""
    self_ns: int
    """Self time: part of ``duration_ns`` outside all sections."""
    samples: int | None
    """Number of samples in the step's batches."""
    tokens: int | None
    """Number of tokens in the step's batches."""
    elements: int | None = None
    """Number of elements of each batch's largest tensor, summed over the step's batches; missing:
    no batch contains a tensor."""
    flops: int | None = None
    """Floating point operations of the step's models; missing: not all model calls were counted."""
    error: bool
    """True if the step ended with an exception."""
    kept: Word | None
    """Reason why the step is sampled as a [trace](traces.md); missing: the step is not sampled."""
    trace_id: str
    """Id of the step's trace."""


class SectionRow(RankRow, frozen=True, kw_only=True):
    """One row per step, section name and ``beside``; outside steps one row per flush and path.

    Rows outside steps have no ``n``.
    """

    phase: Word
    """Phase of the step. Outside steps, only aggregated sections have a phase: the phase in which
    the section ran."""
    n: int | None
    """Index of the step (column ``n`` of ``steps()``); missing outside steps."""
    number: int | None
    """Number of the step; missing outside steps."""
    name: Word
    """Name of the section."""
    category: Word
    """Category of the section's work."""
    parent: Word = ""
    """Name of the directly enclosing section."""
    path: Word = ""
    """Outside steps: names of the enclosing sections (without the run) and of this section,
    separated by slashes; a double slash precedes an aggregated section. In steps, only parts of a
    data wait have a path: the names from the data wait down to the part."""
    beside: bool = False
    """True if the section ran on another thread or task than the enclosing section (concurrently),
    or is a part of a data wait in a step (a row with a ``path``)."""
    aggregate: bool = False
    """True if the section is recorded with ``aggregate=True``."""
    count: int
    """Number of calls."""
    sum_ns: int
    """Sum of the calls' durations."""
    self_ns: int
    """Self time: ``sum_ns`` without the time in child sections on the same thread or task."""
    min_ns: int
    """Shortest duration of a call."""
    max_ns: int
    """Longest duration of a call."""
    start_ns: int
    """Start of the first call."""


class PlaceRow(RankRow, frozen=True, kw_only=True):
    """Key of a section's place; the figures of calls with the same key are summed."""

    phase: Word
    name: Word
    category: Word
    path: Word
    """Names of the enclosing sections (without the run) and of the section, separated by slashes;
    empty in steps."""
    beside: bool
    in_step: bool


class ResourceRow(PlaceRow, frozen=True, kw_only=True):
    """One row per flush, place and measure: resource use of all calls since the previous flush."""

    measure: Word
    """Key of the measure: see ``names.MEASURES``."""
    count: int
    total: int
    least: int
    most: int
    spread: float
    """Sum of the squared deviations from the mean."""


class DurationPlaceRow(PlaceRow, frozen=True, kw_only=True):
    """Key of a histogram of durations: place, bound and (for requests) minute."""

    bound_s: float | None
    """Maximum duration as declared by the program; missing: not declared."""
    minute_ns: int | None = None
    """Start of the minute in which the calls ended; only for requests."""


class DurationRow(DurationPlaceRow, frozen=True, kw_only=True):
    """One row per flush and place: durations of the calls since the previous flush.

    Requests have one row per minute, since no other table contains the time of each request.
    """

    count: int
    errors: int
    within: int
    """Number of calls that did not exceed the bound and did not fail."""
    sum_ns: int
    min_ns: int
    max_ns: int
    spread: float
    """Sum of the squared deviations from the mean, in ns²."""
    scale: Int32
    """Scale of the exponential histogram, whose values are in seconds."""
    zeros: int
    first_bucket: int
    counts: str
    """JSON: counts of the buckets, starting with ``first_bucket``."""


class GpuStepRow(RankRow, frozen=True, kw_only=True):
    """One row per step with known GPU time."""

    phase: Word
    n: int
    number: int
    device: Int32
    gpu_ns: int
    idle_ns: int | None
    """GPU time outside the sections that launch work; missing: no section launched work."""
    host_paced_ns: int
    device_paced_ns: int
    """Part of ``gpu_ns`` paced by the device; the pace is unknown for the remainder of ``gpu_ns``.
    """


class SpanRow(RankRow, frozen=True, kw_only=True):
    """One row per sampled span, and per event and roll-up of profiler windows."""

    trace_id: str
    span_id: str
    parent_id: str
    name: Word
    category: Word
    phase: Word
    track: int
    """Thread ident or task number; spans of one track are nested."""
    thread: Word
    thread_id: int | None
    """Native thread id, as recorded by profilers."""
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
    """JSON: attributes by name."""
    links: str
    """JSON: ``[[trace id, span id], ...]``; an item may also contain attributes and flags."""
    events: str | None = None
    """JSON: ``[[time in ns, name, {attributes}], ...]``."""
    kind: Word
    """``section``, ``rollup`` or ``segment``; for profilers ``event`` or ``event_rollup`` (sent in
    place of several events, which are also stored as rows)."""


class ValueRow(RankRow, frozen=True, kw_only=True):
    """One row per value passed to ``log()``."""

    phase: Word
    """Phase in which the value was logged."""
    name: Word
    """Name of the value as passed by the program."""
    number: int | None
    """Number of the step; missing outside steps."""
    time_ns: int
    """Time at which the value was logged."""
    value: float
    """Logged value."""


class MarkRow(RankRow, frozen=True, kw_only=True):
    """One row per call of ``run.mark()``."""

    phase: Word
    """Phase in which the mark was set."""
    name: Word
    """Name of the mark as passed by the program (default: ``mark``)."""
    number: int
    """Number of the step that contains the mark; outside steps, of the phase's next step."""
    time_ns: int
    """Time at which the mark was set."""


class ReadingRow(Row, frozen=True, kw_only=True):
    """One row per reading of a process, host or device."""

    rank: Int32 | None
    """Rank of the process; missing for readings of the node."""
    restart: Int32
    """Number of earlier starts of this rank."""
    name: Word
    """Name of the metric (see [metrics.md](metrics.md))."""
    labels: Word
    """Labels by name as JSON, e.g. device and kind."""
    time_ns: int
    """Time of the reading."""
    value: float
    """Value in the unit of the metric."""


class InstrumentRow(RankRow, frozen=True, kw_only=True):
    """One row per process and metric that the program defines or PyTorch's allocator provides."""

    name: Word
    unit: Word
    kind: Word
    """``counter``, ``gauge`` or ``histogram``; readings of a histogram have the names
    ``<name>.count`` and ``<name>.sum``."""


class WarningRow(Row, frozen=True, kw_only=True):
    """One row per flush during a warning; the row with the latest end covers the whole warning."""

    rank: Int32 | None
    """Rank of the warning; missing for warnings of the node."""
    restart: Int32
    id: Word
    """Id of the warning's row in the table of findings."""
    labels: Word
    """JSON: labels by name."""
    start_ns: int
    end_ns: int
    """Last time at which the condition was true."""
    value: float
    """Worst value since the start of the warning."""
    threshold: float
