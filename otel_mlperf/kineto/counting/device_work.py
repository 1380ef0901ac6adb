"""Device work: the events that ran on a device, their kind, and the bandwidth of copies.

Kineto names a copy by its direction and by the kinds of memory: ``Memcpy HtoD (Pageable ->
Device)``. Bandwidth is total bytes / total time of the copies whose size the trace records, so that
many small copies reduce it. A pageable copy is slower, because it is staged through a pinned buffer
of the driver, and the host waits for it.

Some copies are recognised only by their names, because ROCm copies and sets memory with kernels. An
MTIA records each copy as a request to its DMA engine; the ``args`` of the request contain the
direction and size.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.intervals import union
from otel_mlperf.kineto.linking.device_numbers import find_device_numbers
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.reading.trace_reader import read_details
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.tables.window_tables import CopyRow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from otel_mlperf.intervals import Intervals
    from otel_mlperf.kineto.trace_events import Trace

_COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_COPYING: Final = re.compile(
    r"__amd_rocclr_(?:copy|fill)|dma_request|Mem(?:cpy|set)|MEM(?:CPY|SET)_|copy-(?:start|done)\b"
)
"""Name prefixes of copies and memsets that are not recognised by their category."""
REQUEST: Final = "dma_request"
_DIRECTION_KEY: Final = re.compile(r"direction|kind|type", re.IGNORECASE)
_SIZE_KEY: Final = re.compile(r"bytes|(?:transfer |dma )?size", re.IGNORECASE)
_WAITS: Final = frozenset({"cuda_sync", "cuda_event", "cuda_profiler_range", "collective_comm"})
"""Categories of events on a device's rows that are not work: waits, marks and repeated kernels."""
_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|oneccl|nvshmem|deep_ep|cross_device_reduce|multimem_"
    r"|(?:one|two)_shot_all_reduce|all_?reduce_fusion|hccl|hcom_"
    r"|^(?:ragged-)?all-(?:reduce|gather|to-all)|^reduce-scatter|^collective-(?:permute|broadcast)",
    re.IGNORECASE,
)
_ARGUMENTS = re.compile(r"[<(]")
SET: Final = "set"
OTHER: Final = "other"
_DIRECTIONS: Final = (
    ("H2D", r"HtoD|HtoA|Host_?To_?Device|M2D\b|H2D\b|Host ?-> ?Device"),
    ("D2H", r"DtoH|AtoH|Device_?To_?Host|D2M\b|D2H\b|Device ?-> ?Host"),
    ("P2P", r"PtoP|Peer_?To_?Peer|P2P\b"),
    ("D2D", r"DtoD|DtoA|AtoD|AtoA|Device_?To_?Device|D2D\b"),
    ("H2H", r"HtoH|Host_?To_?Host|M2M\b|H2H\b"),
    (SET, r"^Memset|Fill(?:Buffer)?\b|rocclr_fill"),
)


class WorkKind(IntEnum):
    """Kind of device work; ``1 << kind`` is its bit in a mask of kinds."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    """Copies and memsets, which move bytes and compute nothing."""


class Work(NamedTuple):
    """Device work of a trace as columns; every array has one item for each piece of work."""

    rows: NDArray[np.intp]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    kind: NDArray[np.uint8]
    device: NDArray[np.int64]
    """Index into ``devices``."""
    stream: NDArray[np.int64]
    """Index into ``streams``."""
    devices: list[int]
    streams: list[tuple[int, int]]
    """Device number and stream number of each stream, as in the trace."""

    def of(self, kind: WorkKind, group: NDArray[np.int64]) -> Intervals:
        """Return the intervals with work of one kind by ``group`` (``device`` or ``stream``)."""
        mine = self.kind == kind
        return union(self.start_ns[mine], self.end_ns[mine], group[mine])


def find_work(trace: Trace) -> Work:
    """Return the device work of a trace: kernels, copies and memsets.

    Device and stream are read from the event's ``args``. If they are missing there, they are
    derived from the event's track.
    """
    rows = np.flatnonzero((find_roles(trace) == Role.DEVICE) & ~is_of(trace, _WAITS))
    device, stream = find_device_numbers(trace, rows)
    return numbered_work(trace, rows, _kinds(trace, rows), device, stream)


def numbered_work(
    trace: Trace,
    rows: NDArray[np.intp],
    kind: NDArray[np.uint8],
    device: NDArray[np.signedinteger[Any]],
    stream: NDArray[np.signedinteger[Any]],
) -> Work:
    """Return the device work in ``rows``; the other arrays have one item for each of these rows.

    ``device`` and ``stream`` contain the numbers in the trace.
    """
    devices, of_device = np.unique(device, return_inverse=True)
    numbers, number = np.unique(stream, return_inverse=True)
    pairs, of_stream = np.unique(of_device * len(numbers) + number, return_inverse=True)
    start = trace.events.start_ns[rows]
    return Work(
        rows=rows,
        start_ns=start,
        end_ns=start + np.maximum(trace.events.duration_ns[rows], 0),
        kind=kind,
        device=of_device,
        stream=of_stream,
        devices=devices.tolist(),
        streams=[
            (int(devices[pair // len(numbers)]), int(numbers[pair % len(numbers)]))
            for pair in pairs.tolist()
        ],
    )


def is_of(trace: Trace, categories: frozenset[str]) -> NDArray[np.bool_]:
    """Return for each event whether its category is one of ``categories``."""
    wanted = np.array([category in categories for category in trace.categories] or [False])
    return wanted[trace.events.category]


def is_communication(name: str) -> bool:
    """Return whether a kernel with this name moves data between ranks.

    Recognised libraries are NCCL, RCCL, MSCCL, oneCCL, HCCL, NVSHMEM, DeepEP and XLA's collectives.
    Recognised kernels of PyTorch's symmetric memory, vLLM and TensorRT-LLM are one-shot and
    two-shot reductions, kernels fused with a reduction, and kernels that use multimem
    (``multimem_all_reduce``). Other communication counts as compute.
    """
    # "(anonymous namespace)" is removed first, because its bracket does not start the arguments.
    function = _ARGUMENTS.split(name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return _COMMUNICATION.search(function) is not None


def _kinds(trace: Trace, rows: NDArray[np.intp]) -> NDArray[np.uint8]:
    copies = is_of(trace, _COPIES)[rows]
    # Each name is classified once, because thousands of kernels share a few dozen names.
    names, inverse = np.unique(trace.events.name[rows], return_inverse=True)
    kinds = np.array([_kind(trace.names[name]) for name in names], np.uint8)
    return np.where(copies, WorkKind.COPY, kinds[inverse.reshape(-1)]).astype(np.uint8)


def _kind(name: str) -> WorkKind:
    if _COPYING.match(name):
        return WorkKind.COPY
    return WorkKind.COMMUNICATION if is_communication(name) else WorkKind.COMPUTE


def count_copies(trace: Trace, work: Work) -> list[CopyRow]:
    """Return the totals of copies and memsets by device, name and direction.

    Raises:
        TraceError: the trace file cannot be read again.
    """
    mine = np.flatnonzero(work.kind == WorkKind.COPY)
    way, size = _describe(trace, work.rows[mine])
    return add_up_copies(trace, work, mine, way, size)


def add_up_copies(
    trace: Trace,
    work: Work,
    mine: NDArray[np.intp],
    way: NDArray[np.int64],
    size: NDArray[np.signedinteger[Any]],
) -> list[CopyRow]:
    """Return the totals of copies by device, name and direction, sorted by device and time.

    ``mine`` contains the copies' indices into ``work``, ``way`` their directions as indices into
    ``WAYS``, and ``size`` their bytes (NONE: not known).
    """
    name = trace.events.name[work.rows[mine]]
    length = (work.end_ns - work.start_ns)[mine]
    copies = []
    for key in np.unique(np.stack([work.device[mine], name, way]), axis=1).T.tolist():
        same = (work.device[mine] == key[0]) & (name == key[1]) & (way == key[2])
        device, label = work.devices[key[0]], WAYS[key[2]]
        copies.append(_copies(device, label, trace.names[key[1]], length[same], size[same]))
    return sorted(copies, key=lambda of_name: (of_name.device, -of_name.total_ns, of_name.name))


def _describe(trace: Trace, rows: NDArray[np.intp]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    size = trace.events.bytes[rows].astype(np.int64)
    names, inverse = np.unique(trace.events.name[rows], return_inverse=True)
    named = [trace.names[name] for name in names]
    way = np.array([WAYS.index(direction(name)) for name in named], np.int64)[inverse]
    is_request = np.array([name == REQUEST for name in named], np.bool_)[inverse]
    at = np.flatnonzero(is_request)
    told = read_details(trace, rows[at].tolist()) if len(at) else {}
    for place in at.tolist():
        label, its_bytes = describe_request(told[int(rows[place])])
        way[place] = WAYS.index(label)
        size[place] = size[place] if its_bytes is None else its_bytes
    return way, size


def describe_request(args: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return the direction and bytes (None: not known) in the ``args`` of a DMA request."""
    told = (str(value) for key, value in args.items() if _DIRECTION_KEY.search(key))
    label = next((way for value in told if (way := direction(value)) != OTHER), OTHER)
    sizes = (value for key, value in args.items() if _SIZE_KEY.fullmatch(key))
    return label, next((size for size in sizes if type(size) is int and size >= 0), None)


WAYS: Final = (*(label for label, _ in _DIRECTIONS), OTHER)


def direction(name: str) -> str:
    """Return the direction in a copy's name (of CUDA, ROCm, XPU or MTIA); OTHER if it has none."""
    for label, pattern in _DIRECTIONS:
        if re.search(pattern, name, re.IGNORECASE):
            return label
    return OTHER


def _copies(
    device: int, label: str, name: str, length: NDArray[np.int64], size: NDArray[np.int64]
) -> CopyRow:
    sized = size != NONE
    return CopyRow(
        device=device,
        direction=label,
        name=name,
        pageable="pageable" in name.lower(),
        count=len(length),
        total_ns=int(length.sum()),
        sized_ns=int(length[sized].sum()),
        bytes=int(size[sized].sum()) if sized.any() else None,
    )
