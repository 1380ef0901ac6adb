"""Data types of profiler windows and their kernels, as ``--json`` prints them.

Times are nanoseconds and sums over all windows, unless a field declares otherwise.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from otel_mlperf.store.window_facts import (  # noqa: TC001
    CapturedWork,
    UnknownRows,
    WindowCompleteness,
)
from otel_mlperf.tables.window_tables import GapRow  # noqa: TC001


class WindowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one profiler window."""

    rank: int
    restart: int
    trace: str
    """File name of the trace."""
    digest: str
    start_ns: int
    duration_ns: int
    is_unix_time: bool
    steps: list[str]
    events: int
    categories: dict[str, int]
    """Number of events by category, as named in the trace."""
    orphans: dict[str, int]
    damage: list[dict[str, Any]]
    """Unreadable data by kind: occurrences, byte offset of the first, an example."""
    completeness: WindowCompleteness | None = None
    """None: an earlier version read the window and did not check it."""
    unknown_rows: list[UnknownRows] = []
    """Timeline rows that may belong to a device, but are not included in the device figures."""
    captured: CapturedWork | None = None
    """Operators of replayed CUDA graphs; None: no trace of a graph capture was given."""


class DeviceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Busy times of a device or stream; see the profiler numbers in the documentation."""

    ADDED: ClassVar = (
        *("window_ns", "count", "busy_ns", "overlap_ns", "idle_ns", "gap_ns", "gaps"),
        *("host_wait_ns", "device_wait_ns", "unknown_wait_ns"),
        *("compute_ns", "communication_ns", "copy_ns"),
        *("compute_communication_ns", "compute_copy_ns", "communication_copy_ns"),
        *("exposed_communication_ns", "exposed_copy_ns", "launches", "early"),
    )
    """Fields that are summed over windows."""

    rank: int | None
    """None: all ranks."""
    device: int | None
    """None: all devices."""
    stream: int | None
    """None: all streams."""
    window_ns: int
    count: int
    busy_ns: int
    overlap_ns: int
    """Sum of durations beyond the busy time, by stream: work concurrent to work of the same
    stream."""
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
    early: int
    delay_p50_ns: int | None
    """Quantiles exist for a single window and device only, because they cannot be merged."""
    delay_p95_ns: int | None
    delay_max_ns: int | None


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: a kernel, operator, annotation, stream, section, phase or step."""

    UNCHANGED: ClassVar = (
        *("category", "kind", "section", "calls", "total_ns", "self_ns", "device_ns"),
        *("mean_ns", "min_ns", "max_ns", "p50_ns", "p95_ns"),
    )
    """Fields that do not depend on the measure by which rows are sorted."""

    name: str
    category: str
    """Category as named in the trace. Among operators, ``device`` is device work outside operators,
    named after the launching call; ``annotation`` is an annotation inside an operator, whose time
    is not part of the operator's self time. For a section, phase or step: the work that is counted,
    ``device`` or ``host``."""
    kind: str
    """Kind of device work: compute, communication or copy; also set for a collective's
    annotation."""
    section: str
    """Section with most of the row's time; empty: unknown."""
    calls: int
    total_ns: int
    self_ns: int
    device_ns: int
    """For an operator: device work launched by the operator itself, not by nested operators."""
    measured_ns: int
    """Measure by which the rows are sorted."""
    share: float
    """Share of device busy time; for a stream or annotation, of the windows; for an operator in a
    trace without devices, of the self time of all operators."""
    mean_ns: float
    min_ns: int
    max_ns: int
    p50_ns: int | None
    """None if the row is from several windows."""
    p95_ns: int | None


class RowsTogether(msgspec.Struct, frozen=True, kw_only=True):
    """Sum of several rows of the table."""

    rows: int
    calls: int
    measured_ns: int | None
    """None: the rows overlap (annotations nest, streams run concurrently)."""
    share: float | None


class CollectiveFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of one operation, from annotations on the host."""

    name: str
    calls: int
    total_ns: int
    """Sum of the durations, including those of concurrent collectives."""


class CollectiveKernels(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one collective operation in groups of one size."""

    operation: str
    group_size: int | None
    """None: not recorded in the trace."""
    calls: int
    total_ns: int
    bytes: int | None
    """Sum of the known message sizes; None: no size is known."""
    bus_bytes_per_s: float | None
    """Bus bandwidth as defined by NCCL's tests, including waits for other ranks."""


class CopyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Copies or memsets of one name."""

    direction: str
    name: str
    pageable: bool
    calls: int
    total_ns: int
    bytes: int | None
    """None: the trace contains no size."""
    bytes_per_s: float | None


class AllocatorPeak(msgspec.Struct, frozen=True, kw_only=True):
    """Peaks of allocated and reserved memory of one device's allocator."""

    rank: int
    device_type: int
    """0 CPU, 1 CUDA, as ``c10::DeviceType``."""
    device: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    section: str | None
    """Innermost section at the peak; empty: none. None (unknown) for a trace file."""
    operator: str | None
    """Innermost operator at the peak; empty: none. None (unknown) for a trace file."""


class ProfiledStepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One profiled step on every requested rank; times are sums over ranks and devices.

    Device work is attributed to the step that launched it, even if it ran after the step. Therefore
    the device's idle time during the step cannot be derived from these figures.
    """

    name: str
    phase: str
    """Empty: unknown."""
    number: int
    ranks: list[int]
    events: int
    duration_ns: int
    busy_ns: int | None
    """Time in which devices worked for the step; None: no device worked."""
    communication_ns: int | None
    exposed_communication_ns: int | None
    """Communication time without concurrent computation for the same step."""


class Kernels(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="kernels/1"):
    """Device work in the windows of a run, in one step of them, or in one trace."""

    source: str
    by: str
    world_size: int | None
    windows: list[WindowFacts]
    is_complete: bool
    """Whether no window is known to lack data. The windows' ``completeness`` describes losses, and
    whether devices were busier than these figures."""
    total: DeviceFigures | None
    """Sum over all windows and devices; None: no device worked, or only one step was requested."""
    devices: list[DeviceFigures]
    rows: list[KernelRow]
    groups: dict[str, int]
    """Number of rows of each grouping."""
    collectives: list[CollectiveFigures]
    collective_kernels: list[CollectiveKernels] = []
    """Collectives of whole windows; not counted for a single step."""
    copies: list[CopyFigures]
    gaps: list[GapRow]
    """Longest gaps."""
    memory: list[AllocatorPeak]
    more: RowsTogether | None = None
    """Sum of the rows beyond the requested number; None: ``rows`` contains all."""
    together: RowsTogether | None = None
    """Sum of all rows, including ``more``: all device work, or the self time of all operators.
    None: there are no rows."""
    unread: int = 0
    """Number of recorded windows that the agent has not read yet."""
    step: ProfiledStepFacts | None = None
    """The requested step, if any: rows, collectives and copies are its own."""

    @property
    def has_device_times(self) -> bool:
        """Return whether no device time is known to be missing; if False, devices were busier."""
        known = (window.completeness for window in self.windows)
        return all(completeness is None or completeness.has_device_times for completeness in known)

    @property
    def is_device(self) -> bool:
        """Return whether a device worked in the windows or in the step."""
        return self.total is not None or (self.step is not None and self.step.busy_ns is not None)

    @property
    def communication_ns(self) -> int:
        """Return the time in which devices communicated; 0 if no device worked."""
        spent_ns = (
            self.total.communication_ns if self.total else self.step and self.step.communication_ns
        )
        return spent_ns or 0
