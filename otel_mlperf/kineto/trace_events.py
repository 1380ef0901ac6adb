"""Columns of a trace: events, flows, allocations, tracks and damage.

There is one row for each event that has a duration (``ph`` X, or a matched pair of B and E), in
the order of the file; other content of the file is stored in smaller tables. A row takes 91 bytes
at most. Its further ``args`` stay in the file, at ``position``, and are read on demand
(``read_details``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

NONE: Final = -1
"""In an integer column: the event does not say."""
FIRST_TEXT_ID: Final = -2
"""Of arrows: ids that are texts have numbers from here downward."""


class TraceTrack(NamedTuple):
    """A row of the timeline: a thread of the host, or a stream of a device."""

    pid: str
    tid: str
    """As the file writes them, numbers as decimal text."""
    process: str = ""
    """``process_name`` of the metadata."""
    thread: str = ""
    """``thread_name`` of the metadata."""
    labels: str = ""
    """``process_labels`` of the metadata: ``CPU``, ``GPU 0``."""


@dataclass(slots=True)
class Flows:
    """The ends of arrows between events; every array has one item for each end."""

    kind: NDArray[np.uint8]
    """Index into ``Trace.flow_kinds``."""
    id: NDArray[np.signedinteger[Any]]
    """This and ``track`` in the narrowest integers that hold them, as in ``Events``."""
    starts: NDArray[np.bool_]
    time_ns: NDArray[np.int64]
    track: NDArray[np.signedinteger[Any]]

    def __len__(self) -> int:
        return len(self.id)


@dataclass(slots=True)
class Allocations:
    """The ``[memory]`` instants of the allocator; every array has one item for each."""

    time_ns: NDArray[np.int64]
    track: NDArray[np.int32]
    device_type: NDArray[np.int16]
    """0 CPU, 1 CUDA, as ``c10::DeviceType``."""
    device: NDArray[np.int16]
    size: NDArray[np.int64]
    """Bytes; negative: freed."""
    address: NDArray[np.int64]
    allocated: NDArray[np.int64]
    """Total allocated on the device afterwards; NONE where the file does not say."""
    reserved: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(slots=True)
class Events:
    """The columns; every array has one item for each event."""

    start_ns: NDArray[np.int64]
    """Unix time where the file has it; else from the file's own zero."""
    duration_ns: NDArray[np.int64]
    category: NDArray[np.uint8]
    """Index into ``Trace.categories``."""
    position: NDArray[np.signedinteger[Any]]
    """Byte offset of the event's ``{`` in the uncompressed text.

    This and the following in the narrowest integers that hold them: widen before arithmetic."""
    name: NDArray[np.signedinteger[Any]]
    """Index into ``Trace.names``."""
    track: NDArray[np.signedinteger[Any]]
    """Index into ``Trace.tracks``."""
    correlation: NDArray[np.signedinteger[Any]]
    external: NDArray[np.signedinteger[Any]]
    """``External id``."""
    sequence: NDArray[np.signedinteger[Any]]
    """``Sequence number``."""
    forward_thread: NDArray[np.signedinteger[Any]]
    """``Fwd thread id``."""
    device: NDArray[np.signedinteger[Any]]
    """``args.device``."""
    stream: NDArray[np.signedinteger[Any]]
    """``args.stream``."""
    bytes: NDArray[np.signedinteger[Any]]
    """Of a copy or memset."""

    def __len__(self) -> int:
        return len(self.start_ns)


class NumberedRecords(NamedTuple):
    """Records of one category in one block of the file, by the profiler's own numbers of them."""

    category: str
    """``memory``: instants of the allocator and the like."""
    records: int
    first: int
    """The lowest number."""
    last: int
    start_ns: int
    """When the first of them began."""
    end_ns: int
    """When the last of them began."""


class Damage(NamedTuple):
    """One kind of damage that was met."""

    kind: str
    """``truncated``, ``bad_escape``, ``not_a_number``, ``wrong_type``, ``missing_field``, …"""
    occurrences: int
    offset: int
    """Byte offset, in the uncompressed text, of the first."""
    example: str


@dataclass(slots=True)
class Trace:
    """A whole file."""

    path: Path
    events: Events
    names: list[str]
    categories: list[str]
    """As the file writes them, lower case: ``cpu_op``, ``kernel``, ``gpu_memcpy``, …"""
    tracks: list[TraceTrack]
    flows: Flows
    flow_kinds: list[str]
    """``ac2g``, ``fwdbwd``, …: older names of these two are read as them."""
    allocations: Allocations
    damage: list[Damage] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Entries of ``traceEvents`` by their ``ph``, all of them."""
    is_unix_time: bool = True
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    """Of the collectives: ``nccl``, ``gloo``; empty if the file does not say."""
    devices: list[dict[str, Any]] = field(default_factory=list)
    """``deviceProperties``, as the file has them."""
    header: dict[str, Any] = field(default_factory=dict)
    """Scalar fields beside ``traceEvents``: ``schemaVersion``, ``trace_id``, …"""
    numbered: list[NumberedRecords] = field(default_factory=list)
    """How the profiler has numbered what torch recorded (``Ev Idx``), from 0 on."""
    silent_tracks: list[TraceTrack] = field(default_factory=list)
    """Rows of the timeline that the metadata names and nothing stands on."""
    roles: NDArray[np.uint8] | None = None
    """Of each event, once they were found where categories do not say them: that is slow."""
    timeless_work: int = 0
    """Records on streams that were left out because they have no usable time."""
    digest: str = ""
    """SHA-256 of the uncompressed text: two imports of one file are one."""
