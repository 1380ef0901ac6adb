"""Which events are work of a device, where did they run, and what kind of work was it?"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.intervals import union
from otel_mlperf.kineto.linking.roles import Role, find_roles
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.intervals import Intervals
    from otel_mlperf.kineto.trace_events import Trace

_COPIES: Final = frozenset({"gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_WAITS: Final = frozenset({"cuda_sync", "cuda_event", "cuda_profiler_range", "collective_comm"})
"""On a device's rows of the timeline, but no work: they wait, mark, or repeat kernels."""

_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|oneccl|nvshmem|deep_ep|cross_device_reduce|multimem_"
    r"|(?:one|two)_shot_all_reduce|all_?reduce_fusion",
    re.IGNORECASE,
)
_ARGUMENTS = re.compile(r"[<(]")


class Kind(IntEnum):
    """What a device was doing; a bit number."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    """Copies and memsets: they move bytes and compute nothing."""


class Work(NamedTuple):
    """The device events of a trace; every array has one item for each."""

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
    """Device and stream, as the trace numbers them."""

    def of(self, kind: Kind, group: NDArray[np.int64]) -> Intervals:
        """When work of one kind ran, by device or by stream."""
        mine = self.kind == kind
        return union(self.start_ns[mine], self.end_ns[mine], group[mine])


def find_work(trace: Trace) -> Work:
    """The device events of a trace: kernels, copies and memsets.

    Device and stream are those of their ``args``; where these do not say, those that the numbers of
    their track mean.
    """
    events = trace.events
    rows = np.flatnonzero((find_roles(trace) == Role.DEVICE) & ~is_of(trace, _WAITS))
    pids = np.array([_number(track.pid) for track in trace.tracks] or [NONE], np.int64)
    tids = np.array([_number(track.tid) for track in trace.tracks] or [NONE], np.int64)
    track = events.track[rows]
    device = np.where(events.device[rows] != NONE, events.device[rows], pids[track])
    stream = np.where(events.stream[rows] != NONE, events.stream[rows], tids[track])
    pairs, of_stream = np.unique(np.stack([device, stream]), axis=1, return_inverse=True)
    devices, of_device = np.unique(device, return_inverse=True)
    start = events.start_ns[rows]
    return Work(
        rows=rows,
        start_ns=start,
        end_ns=start + np.maximum(events.duration_ns[rows], 0),
        kind=_kinds(trace, rows),
        device=of_device.reshape(-1).astype(np.int64),
        stream=of_stream.reshape(-1).astype(np.int64),
        devices=devices.tolist(),
        streams=[(int(one), int(other)) for one, other in pairs.T],
    )


def is_of(trace: Trace, categories: frozenset[str]) -> NDArray[np.bool_]:
    """Whether each event is of one of these categories."""
    wanted = np.array([one in categories for one in trace.categories] or [False])
    return wanted[trace.events.category]


def is_communication(name: str) -> bool:
    """Whether a kernel moves data between ranks, by the name of its function.

    Known are NCCL, RCCL, MSCCL, oneCCL, NVSHMEM, DeepEP and the one-shot reductions of PyTorch's
    symmetric memory, vLLM and TensorRT-LLM; what else communicates counts as compute.
    """
    function = _ARGUMENTS.split(name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return _COMMUNICATION.search(function) is not None


def _kinds(trace: Trace, rows: NDArray[np.intp]) -> NDArray[np.uint8]:
    copies = is_of(trace, _COPIES)[rows]
    names, inverse = np.unique(trace.events.name[rows], return_inverse=True)
    talks = np.array([is_communication(trace.names[name]) for name in names] or [False])
    kind = np.where(talks[inverse], Kind.COMMUNICATION, Kind.COMPUTE) if len(rows) else rows
    return np.where(copies, Kind.COPY, kind).astype(np.uint8)


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else NONE
