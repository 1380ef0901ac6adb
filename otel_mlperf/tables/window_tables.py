"""Rows of the tables of profiler windows, which the conversion of their traces writes.

Times are Unix nanoseconds where the trace's are, durations nanoseconds.
"""

import msgspec

from otel_mlperf.tables.row import Int32, Row, Word


class OfWindow(Row, frozen=True, kw_only=True):
    """Row of a table of one window; its first columns are set when all of its rows are complete."""

    rank: Int32 = 0
    """Rank of the process."""
    restart: Int32 = 0
    """Number of earlier starts of this rank."""
    digest: str = ""
    """Window: the SHA-256 of its trace."""


class WindowRow(OfWindow, frozen=True, kw_only=True):
    """One row for each profiler window; a second import replaces the first."""

    number: int | None
    """Number among the process's windows; missing: imported."""
    trace: str
    """File name."""
    start_ns: int
    end_ns: int
    is_unix_time: bool
    steps: str
    """JSON: their names."""
    categories: str
    """JSON: ``{category: [events, sum of their durations in ns]}``."""
    orphans: str
    """JSON: ``{kind: events}``."""
    collectives: str | None
    """JSON: kernels by operation; missing: not counted."""
    unknown_rows: str | None
    """JSON: rows that may be a device's; missing: not determined."""
    captured: str | None
    """JSON: what a capture records of graphs; missing: no capture was given."""
    damage: str
    """JSON: ``[[kind, occurrences, byte offset of the first, example], ...]``."""


class CompletenessRow(OfWindow, frozen=True, kw_only=True):
    """One row for each profiler window: the share of the expected records that is there."""

    ratio: float
    """Smallest recorded share of any kind of record."""
    is_complete: bool
    has_device_times: bool
    """False: the devices were busier than the window shows."""
    launches: int
    answered: int
    """Launches whose work has a record."""
    losses: str
    """JSON: missing records by kind and stream."""
    whole: str
    """JSON: the part without lost work, and its content."""


class TotalRow(OfWindow, frozen=True, kw_only=True):
    """One row for each window and name of what ran in it; also by stream, section, phase, step."""

    what: Word
    """``kernel``, ``operator``, ``annotation``, ``call``, ``other``, ``stream``, ``section``, …"""
    category: Word
    """Category in the trace; of rows that are no events: ``device`` or ``host``."""
    name: Word
    """Name of the kernel, operator, …"""
    device: Int32 | None
    """Number of the device."""
    stream: int | None
    """Number of the stream."""
    kind: Word
    """``compute``, ``communication`` or ``copy``, of kernels and of collectives."""
    section: Word
    """Section of the origin of most of it; empty: unknown."""
    section_ns: int
    """Part of ``total_ns`` from that section, of kernels."""
    count: int
    """Number of calls."""
    total_ns: int
    """Sum of their durations."""
    self_ns: int
    """Part of the sum outside everything inside it."""
    device_ns: int
    """Duration of the device work that operators launched, without operators inside them."""
    min_ns: int
    """Shortest duration."""
    max_ns: int
    """Longest duration."""
    p50_ns: int
    """Median duration."""
    p95_ns: int
    """95th percentile of the durations."""


class LaunchRow(OfWindow, frozen=True, kw_only=True):
    """One row for each window and work of a device that differs in any of these."""

    name: Word
    """Name of the kernel, copy or memset."""
    section: Word
    """Section of its origin; empty: unknown."""
    operator: Word
    """Operator that launched it; empty: unknown."""
    inputs: Word
    """JSON: shapes and types of the operator's inputs; empty: not recorded."""
    launch: Word
    """Grid and block, or bytes; empty: not recorded."""
    count: int
    total_ns: int


class StreamRow(OfWindow, frozen=True, kw_only=True):
    """One row for each window and device, and for each of its streams: busy time by kind."""

    device: Int32
    stream: int | None
    """Stream number; missing: the whole device."""
    window_ns: int
    first_ns: int
    last_ns: int
    count: int
    busy_ns: int
    overlap_ns: int | None
    """Excess of the sum of durations over busy, computed stream by stream."""
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
    """Number of pieces of work whose call is in the trace."""
    early: int
    """Number of these that started before the call returned."""
    delay_p50_ns: int | None
    delay_p95_ns: int | None
    delay_max_ns: int | None


class CopyRow(OfWindow, frozen=True, kw_only=True):
    """One row for each window, device and kind of copy or memset."""

    device: Int32
    direction: Word
    """One of H2D, D2H, D2D, P2P, H2H, set, other."""
    name: Word
    pageable: bool
    count: int
    total_ns: int
    sized_ns: int
    """Duration of the copies whose size is known."""
    bytes: int | None
    """Sum of the known sizes; missing: no size is known."""


class GapRow(OfWindow, frozen=True, kw_only=True):
    """One row for each of the longest gaps of a window and device: it had no work then."""

    device: Int32
    start_ns: int
    duration_ns: int
    cause: Word
    """One of host_wait, device_wait, unknown_wait; start and end: before all work and after it."""
    operator: Word
    """Name of the event on the host; empty: none is long enough."""
    thread: Word
    next: Word
    """Name of the work that ran next; empty after the last work."""


class AllocatorRow(OfWindow, frozen=True, kw_only=True):
    """The allocator over time in each window, by device: at most 512 rows, with all its peaks."""

    device_type: Int32
    """Device type as ``c10::DeviceType``: 0 CPU, 1 CUDA."""
    device: Int32
    time_ns: int
    allocated_bytes: int | None
    peak_bytes: int | None
    """Peak of the allocated bytes since the row before."""
    reserved_bytes: int | None
    """Peak of the reserved bytes since the row before."""
    change_bytes: int
    """Bytes allocated since the start of the window, less the bytes freed."""


class WindowTables(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of windows, by table."""

    windows: list[WindowRow] = []
    completeness: list[CompletenessRow] = []
    totals: list[TotalRow] = []
    launches: list[LaunchRow] = []
    streams: list[StreamRow] = []
    copies: list[CopyRow] = []
    gaps: list[GapRow] = []
    allocator: list[AllocatorRow] = []
