"""Row types of the tables of profiler windows, which are written when traces are converted.

Times are in Unix nanoseconds if the times in the trace are Unix times; durations are in
nanoseconds.
"""

import msgspec

from otel_mlperf.tables.row import Int32, Row, Word


class OfWindow(Row, frozen=True, kw_only=True):
    """Row of a table of one window; these columns are set when all rows are complete."""

    rank: Int32 = 0
    """Rank of the process."""
    restart: Int32 = 0
    """Number of earlier starts of this rank."""
    digest: str = ""
    """Id of the window: the SHA-256 of its trace."""


class WindowRow(OfWindow, frozen=True, kw_only=True):
    """One row per profiler window; a repeated import replaces the row."""

    number: int | None
    """Number among the process's windows; missing for imported traces."""
    trace: str
    """File name of the trace."""
    start_ns: int
    end_ns: int
    is_unix_time: bool
    steps: str
    """JSON: names of the steps in the window."""
    categories: str
    """JSON: ``{category: [events, sum of their durations in ns]}``."""
    orphans: str
    """JSON: ``{kind: events}``."""
    collectives: str | None
    """JSON: kernels by operation; missing: not counted."""
    unknown_rows: str | None
    """JSON: unidentified timeline rows that may be device work; missing: not determined."""
    captured: str | None
    """JSON: graph work matched with a capture's trace; missing: no such trace was given."""
    damage: str
    """JSON: ``[[kind, occurrences, byte offset of the first, example], ...]``."""


class CompletenessRow(OfWindow, frozen=True, kw_only=True):
    """One row per profiler window: the share of the expected records that was recorded."""

    ratio: float
    """Recorded share of the least complete kind of record."""
    is_complete: bool
    has_device_times: bool
    """Whether device times are plausible; if not, the devices were busier than recorded."""
    launches: int
    answered: int
    """Number of launches whose device work has a record."""
    losses: str
    """JSON: missing records by kind and stream."""
    whole: str
    """JSON: longest part in which no device work is missing, with the devices' activity."""


class TotalRow(OfWindow, frozen=True, kw_only=True):
    """One row per window and name of kernels, operators etc., and per stream, section or step."""

    what: Word
    """``kernel``, ``operator``, ``annotation``, ``call``, ``other``, ``stream``, ``section``, …"""
    category: Word
    """Category in the trace; for totals by stream, section, phase or step: ``device`` or ``host``.
    """
    name: Word
    """Name of the kernel, operator, …"""
    device: Int32 | None
    """Number of the device."""
    stream: int | None
    """Number of the stream."""
    kind: Word
    """Only for kernels and collectives: ``compute``, ``communication`` or ``copy``."""
    section: Word
    """Section that launched most of the work; empty: unknown."""
    section_ns: int
    """Only for kernels: part of ``total_ns`` that this section launched."""
    count: int
    """Number of calls."""
    total_ns: int
    """Sum of the calls' durations."""
    self_ns: int
    """Self time: the sum without the time of nested events."""
    device_ns: int
    """Only for operators: duration of the device work that the operator itself launched."""
    min_ns: int
    """Shortest duration."""
    max_ns: int
    """Longest duration."""
    p50_ns: int
    """Median duration."""
    p95_ns: int
    """95th percentile of the durations."""


class LaunchRow(OfWindow, frozen=True, kw_only=True):
    """One row per window and combination of name, section, operator, inputs and launch."""

    name: Word
    """Name of the kernel, copy or memset."""
    section: Word
    """Section that launched the work; empty: unknown."""
    operator: Word
    """Operator that launched the work; empty: unknown."""
    inputs: Word
    """JSON: shapes and types of the operator's inputs; empty: not recorded."""
    launch: Word
    """Grid and block of a kernel, or bytes of a copy; empty: not recorded."""
    count: int
    total_ns: int


class StreamRow(OfWindow, frozen=True, kw_only=True):
    """One row per window and device, and per stream of the device: busy and idle time by kind."""

    device: Int32
    stream: int | None
    """Stream number; missing: the whole device."""
    window_ns: int
    first_ns: int
    last_ns: int
    count: int
    busy_ns: int
    overlap_ns: int | None
    """Excess of the sum of durations over the busy time, computed per stream."""
    idle_ns: int
    gap_ns: int
    gaps: int
    host_wait_ns: int
    device_wait_ns: int
    unknown_wait_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    compute_communication_ns: int
    compute_copy_ns: int
    communication_copy_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    launches: int
    """Number of kernels, copies and memsets whose launch call is in the trace."""
    early: int
    """Number of these that started before their launch call returned."""
    delay_p50_ns: int | None
    delay_p95_ns: int | None
    delay_max_ns: int | None


class CopyRow(OfWindow, frozen=True, kw_only=True):
    """One row per window, device and kind of copy or memset."""

    device: Int32
    direction: Word
    """``H2D``, ``D2H``, ``D2D``, ``P2P``, ``H2H``, ``set`` or ``other``."""
    name: Word
    pageable: bool
    count: int
    total_ns: int
    sized_ns: int
    """Total duration of the copies with known size."""
    bytes: int | None
    """Sum of the known sizes; missing: no size is known."""


class GapRow(OfWindow, frozen=True, kw_only=True):
    """One row per gap, i.e. time without work of a device; only the longest gaps per window."""

    device: Int32
    start_ns: int
    duration_ns: int
    cause: Word
    """``host_wait``, ``device_wait``, ``unknown_wait``, ``start`` (before the first work) or
    ``end`` (after the last work)."""
    operator: Word
    """Name of the host event during the gap; empty: no event is long enough."""
    thread: Word
    next: Word
    """Name of the next work of the device; empty after the last work."""


class AllocatorRow(OfWindow, frozen=True, kw_only=True):
    """State of the allocator over time, per window and device: at most 512 rows, with all peaks."""

    device_type: Int32
    """Device type in ``c10::DeviceType``: 0 is CPU, 1 is CUDA."""
    device: Int32
    time_ns: int
    allocated_bytes: int | None
    peak_bytes: int | None
    """Peak of the allocated bytes since the previous row."""
    reserved_bytes: int | None
    """Peak of the reserved bytes since the previous row."""
    change_bytes: int
    """Bytes allocated minus bytes freed since the start of the window."""


class WindowTables(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of all tables of profiler windows."""

    windows: list[WindowRow] = []
    completeness: list[CompletenessRow] = []
    totals: list[TotalRow] = []
    launches: list[LaunchRow] = []
    streams: list[StreamRow] = []
    copies: list[CopyRow] = []
    gaps: list[GapRow] = []
    allocator: list[AllocatorRow] = []
