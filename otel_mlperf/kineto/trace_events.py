"""Columns of a trace: events, flows, allocations, tracks and damage.

There is one row for each event that has a duration (``ph`` X, or a matched pair of B and E), in the
order of the file; other content of the file is stored in smaller tables. A row occupies at most 91
bytes. Further ``args`` of an event are not stored, but read from the file on demand, at
``position`` (``read_details``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

NONE: Final = -1
"""Marks a missing value in an integer column."""
FIRST_TEXT_ID: Final = -2
"""Maximum of the negative numbers that replace flow ids that are texts."""


class TraceTrack(NamedTuple):
    """Row of the timeline: a thread of the host, or a stream of a device."""

    pid: str
    tid: str
    """Process id and thread id (``pid`` and ``tid``) as in the file, numbers as decimal text."""
    process: str = ""
    """``process_name`` of the metadata."""
    thread: str = ""
    """``thread_name`` of the metadata."""
    labels: str = ""
    """``process_labels`` of the metadata, e.g. ``CPU`` or ``GPU 0``."""


@dataclass(slots=True)
class Flows:
    """Ends of the arrows (flows) between events; every array has one item for each end."""

    kind: NDArray[np.uint8]
    """Index into ``Trace.flow_kinds``."""
    id: NDArray[np.signedinteger[Any]]
    """Id of the arrow; like ``track``, in the narrowest sufficient integer type."""
    starts: NDArray[np.bool_]
    time_ns: NDArray[np.int64]
    track: NDArray[np.signedinteger[Any]]

    def __len__(self) -> int:
        return len(self.id)


@dataclass(slots=True)
class Allocations:
    """``[memory]`` instants of the allocator; every array has one item for each instant."""

    time_ns: NDArray[np.int64]
    track: NDArray[np.int32]
    device_type: NDArray[np.int16]
    """Device type as in ``c10::DeviceType`` (0 for CPU, 1 for CUDA)."""
    device: NDArray[np.int16]
    size: NDArray[np.int64]
    """Number of bytes; negative if they were freed."""
    address: NDArray[np.int64]
    allocated: NDArray[np.int64]
    """Total allocated on the device afterwards; NONE if the file does not record it."""
    reserved: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(slots=True)
class Events:
    """Events as columns; every array has one item for each event."""

    start_ns: NDArray[np.int64]
    """Unix time if the file records it; otherwise relative to the file's own zero."""
    duration_ns: NDArray[np.int64]
    category: NDArray[np.uint8]
    """Index into ``Trace.categories``."""
    position: NDArray[np.signedinteger[Any]]
    """Byte offset of the event's ``{`` in the uncompressed text.

    This column and all following columns have the narrowest sufficient integer type: widen them
    before arithmetic.
    """
    name: NDArray[np.signedinteger[Any]]
    """Index into ``Trace.names``."""
    track: NDArray[np.signedinteger[Any]]
    """Index into ``Trace.tracks``."""
    correlation: NDArray[np.signedinteger[Any]]
    external: NDArray[np.signedinteger[Any]]
    """``External id``, the id of the operator that the profiler considered open."""
    sequence: NDArray[np.signedinteger[Any]]
    """``Sequence number``, autograd's number of the node."""
    forward_thread: NDArray[np.signedinteger[Any]]
    """``Fwd thread id``, autograd's number of the thread of the forward pass."""
    device: NDArray[np.signedinteger[Any]]
    """``args.device``."""
    stream: NDArray[np.signedinteger[Any]]
    """``args.stream``."""
    bytes: NDArray[np.signedinteger[Any]]
    """Size of a copy or memset in bytes."""

    def __len__(self) -> int:
        return len(self.start_ns)


class NumberedRecords(NamedTuple):
    """Profiler's record numbers (``Ev Idx``) of one category in one block of the file."""

    category: str
    """Category of the records; ``memory`` for instants, e.g. of the allocator."""
    records: int
    first: int
    """Lowest record number in the block."""
    last: int
    start_ns: int
    """Start of the record with the lowest number."""
    end_ns: int
    """Start of the record with the highest number."""


class Damage(NamedTuple):
    """One kind of damage found in a trace file."""

    kind: str
    """``truncated``, ``bad_escape``, ``not_a_number``, ``wrong_type``, ``missing_field``, …"""
    occurrences: int
    offset: int
    """Byte offset of the first occurrence in the uncompressed text."""
    example: str


@dataclass(slots=True)
class Trace:
    """Content of a whole trace file."""

    path: Path
    events: Events
    names: list[str]
    categories: list[str]
    """Categories as the file writes them, lower case: ``cpu_op``, ``kernel``, ``gpu_memcpy``, …"""
    tracks: list[TraceTrack]
    flows: Flows
    flow_kinds: list[str]
    """``ac2g``, ``fwdbwd``, …: older names of these two kinds are mapped to the current names."""
    allocations: Allocations
    damage: list[Damage] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Number of all entries of ``traceEvents``, by ``ph``."""
    is_unix_time: bool = True
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    """Backend of the collectives: ``nccl``, ``gloo``; empty if the file does not record it."""
    devices: list[dict[str, Any]] = field(default_factory=list)
    """``deviceProperties`` as in the file."""
    header: dict[str, Any] = field(default_factory=dict)
    """Scalar fields next to ``traceEvents``, e.g. ``schemaVersion`` or ``trace_id``."""
    numbered: list[NumberedRecords] = field(default_factory=list)
    """Ranges of the record numbers that the profiler assigns to records of torch, from 0 upward."""
    silent_tracks: list[TraceTrack] = field(default_factory=list)
    """Rows of the timeline that the metadata names but that have no entries."""
    roles: NDArray[np.uint8] | None = None
    """Role of each event; cached if categories do not define it, because deriving it is slow."""
    timeless_work: int = 0
    """Number of records on streams that are omitted because they have no usable time."""
    digest: str = ""
    """SHA-256 of the uncompressed text, which identifies repeated imports of one file."""
