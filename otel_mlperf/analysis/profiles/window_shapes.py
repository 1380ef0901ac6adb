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


class WindowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One window."""

    rank: int
    restart: int
    trace: str
    """File name."""
    digest: str
    start_ns: int
    duration_ns: int
    is_unix_time: bool
    steps: list[str]
    events: int
    categories: dict[str, int]
    """Events by category, as the trace writes it."""
    orphans: dict[str, int]
    damage: list[dict[str, Any]]
    """What could not be read, by kind: occurrences, byte offset of the first, an example."""
    completeness: WindowCompleteness | None = None
    """None: it was read by a version that did not look."""
    unknown_rows: list[UnknownRows] = []
    """Rows that may be a device's, and are in no number of devices."""
    captured: CapturedWork | None = None
    """None: no trace of a capture was given."""


class DeviceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a device or stream was; see the profiler numbers in the documentation."""

    ADDED: ClassVar = (
        *("window_ns", "count", "busy_ns", "overlap_ns", "idle_ns", "gap_ns", "gaps"),
        *("host_wait_ns", "device_wait_ns", "unknown_wait_ns"),
        *("compute_ns", "communication_ns", "copy_ns"),
        *("compute_communication_ns", "compute_copy_ns", "communication_copy_ns"),
        *("exposed_communication_ns", "exposed_copy_ns", "launches", "early"),
    )
    """What adds up over windows."""

    rank: int | None
    """None: of all ranks."""
    device: int | None
    """None: of all devices."""
    stream: int | None
    """None: of all streams."""
    window_ns: int
    count: int
    busy_ns: int
    overlap_ns: int
    """By how much durations exceed busy, stream by stream: work beside other work of its stream."""
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
    """Of a single window and device, as a quantile cannot be told from others."""
    delay_p95_ns: int | None
    delay_max_ns: int | None


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel, operator, annotation, stream, section, phase or step."""

    UNCHANGED: ClassVar = (
        *("category", "kind", "section", "calls", "total_ns", "self_ns", "device_ns"),
        *("mean_ns", "min_ns", "max_ns", "p50_ns", "p95_ns"),
    )
    """What does not depend on the measure by which rows are ordered."""

    name: str
    category: str
    """As the trace writes it. Among operators ``device``: device work in no operator, by the call
    that launched it; ``annotation``: an annotation inside an operator, whose time is none of the
    operator's own. Of a section, phase or step what is counted: ``device`` work, else ``host``."""
    kind: str
    """Of device work: compute, communication or copy; of a collective's annotation, too."""
    section: str
    """That with most of its time; empty: none is known."""
    calls: int
    total_ns: int
    self_ns: int
    device_ns: int
    """Of an operator: device work launched by it, not by operators inside it."""
    measured_ns: int
    """By which the rows are ordered."""
    share: float
    """Of device busy time; of a stream or annotation, of the windows; of an operator in a trace
    without devices, of the self time of all operators."""
    mean_ns: float
    min_ns: int
    max_ns: int
    p50_ns: int | None
    """None where it is from several windows."""
    p95_ns: int | None


class RowsTogether(msgspec.Struct, frozen=True, kw_only=True):
    """Several rows of the table added up."""

    rows: int
    calls: int
    measured_ns: int | None
    """None: they overlap (annotations lie in one another, streams run beside each other)."""
    share: float | None


class CollectiveFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The collectives of one operation, as annotations on the host show them."""

    name: str
    calls: int
    total_ns: int
    """Added up, also where they went on at once."""


class CollectiveKernels(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of one collective operation in groups of one size."""

    operation: str
    group_size: int | None
    """None: the trace does not tell."""
    calls: int
    total_ns: int
    bytes: int | None
    """Messages of the kernels whose size is known; None: no size is known."""
    bus_bytes_per_s: float | None
    """Bus bandwidth as NCCL's tests define it, waiting for other ranks included."""


class CopyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Copies or memsets of one name."""

    direction: str
    name: str
    pageable: bool
    calls: int
    total_ns: int
    bytes: int | None
    """None: the trace tells no size."""
    bytes_per_s: float | None


class GapFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a device had no work."""

    rank: int
    device: int
    start_ns: int
    duration_ns: int
    cause: str
    operator: str
    thread: str
    next: str


class AllocatorPeak(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one device's allocator had given out, and held."""

    rank: int
    device_type: int
    """0 CPU, 1 CUDA, as ``c10::DeviceType``."""
    device: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    section: str | None
    """That had begun last when most was given out; empty: in none. Of a trace file not known."""
    operator: str | None
    """The same."""


class ProfiledStepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One profiled step, on every rank that was asked for; times are sums over ranks and devices.

    Device work counts to the step that launched it, however late it ran: how much of the step's
    own time the device was idle is not told by it.
    """

    name: str
    phase: str
    """Empty: nobody knows it."""
    number: int
    ranks: list[int]
    events: int
    duration_ns: int
    busy_ns: int | None
    """In which a device was at work for it; None: none was."""
    communication_ns: int | None
    exposed_communication_ns: int | None
    """In which nothing was computed for it beside."""


class Kernels(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="kernels/1"):
    """What the devices did in the windows of a run, in one step of them, or in one trace."""

    source: str
    by: str
    world_size: int | None
    windows: list[WindowFacts]
    is_complete: bool
    """Whether no window is known to lack anything; its ``completeness`` says what, and whether
    devices were busier than all of this says."""
    total: DeviceFigures | None
    """Over all windows and devices; None: no device was at work, or it is about one step."""
    devices: list[DeviceFigures]
    rows: list[KernelRow]
    groups: dict[str, int]
    """How many rows each way to group them has."""
    collectives: list[CollectiveFigures]
    collective_kernels: list[CollectiveKernels] = []
    """Of whole windows; of one step none are counted."""
    copies: list[CopyFigures]
    gaps: list[GapFigures]
    """The longest."""
    memory: list[AllocatorPeak]
    more: RowsTogether | None = None
    """Rows beyond those that were asked for; None: all are in ``rows``."""
    together: RowsTogether | None = None
    """All rows, those of ``more`` too: the device work, or the self time of operators, of which
    they are the parts. None: there are none."""
    unread: int = 0
    """Windows of the run that are still to be read."""
    step: ProfiledStepFacts | None = None
    """If it is about one step, this one: rows, collectives and copies are its own."""

    @property
    def has_device_times(self) -> bool:
        """Whether nothing is known against the times of devices: else they were busier."""
        known = (window.completeness for window in self.windows)
        return all(completeness is None or completeness.has_device_times for completeness in known)

    @property
    def is_device(self) -> bool:
        """Whether a device was at work."""
        return self.total is not None or (self.step is not None and self.step.busy_ns is not None)

    @property
    def communication_ns(self) -> int:
        """For how long devices communicated."""
        spent_ns = (
            self.total.communication_ns if self.total else self.step and self.step.communication_ns
        )
        return spent_ns or 0
