"""Device rows in traces whose events have no category, recognised by process and thread names.

Kineto writes the category of each event. In traces of other profilers (XLA, Ascend, the list that
``prof.events().export_chrome_trace`` writes) the type of an event follows from its row of the
timeline, because each device has a process and each stream has a thread.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import TraceTrack

_DEVICE: Final = re.compile(
    r"/device:(?!cpu\b)|\b(?:[gnthx]pu|mlu|musa|aiu|ipu|gcu|dcu|cuda|rocm|hip|gaudi|trainium)"
    r"(?=\b|_|\d)|\bneuron|\bascend hardware\b|\baccelerator\b|\bcore\d+ cta\d+\b",
    re.IGNORECASE,
)
"""Found in names, labels or ids of device processes. The last alternative is Triton's Proton."""
_STREAM: Final = re.compile(r"(?:gpu )?stream\W*(\d+)", re.IGNORECASE)
"""Prefix of the names of threads whose events are device work."""
_NUMBER: Final = re.compile(r"(\d+)\s*$")
_ENDING: Final = 16
"""Number of last characters that are searched, because searching a long name may be quadratic."""
_XLA: Final = re.compile(r"/device:", re.IGNORECASE)
_XLA_WORK: Final = "XLA Ops"
"""Name of the only row with device work if a device has no streams, that is, on a TPU."""
_ASCEND: Final = re.compile(r"\bAscend Hardware\b")
_ASCEND_SUMMARY: Final = re.compile(r"\b(?:Overlap Analysis|HCCL|Communication)\b")
_XLA_HOST: Final = re.compile(r"/host:CPU\b")
_LIST: Final = re.compile(r"(\w+) functions")
"""Process ids in the list of autograd's older profiler, e.g. ``CUDA functions``."""
_LIST_STREAM: Final = 0
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")


class TrackKind(IntEnum):
    """Kind of a timeline row, which determines the type of events without a known category."""

    HOST = 0
    OPERATORS = 1
    WORK = 2
    """Row with device work."""
    SUMMARY = 3
    """Row of a device that repeats other rows, e.g. modules, steps or time shares."""
    UNKNOWN = 4
    """Row of a device in an unknown format."""


class DeviceTrack(NamedTuple):
    """Kind of a timeline row, with device and stream number; a number that is not known is NONE."""

    kind: TrackKind
    device: int
    stream: int


def process_numbers(tracks: Sequence[TraceTrack]) -> NDArray[np.int64]:
    """Return a number that identifies the process of each track.

    Names are not used, because numpy stores every text with the length of the longest.
    """
    number_of = {track.pid: at for at, track in enumerate(tracks)}
    return np.array([number_of[track.pid] for track in tracks] or [0], np.int64)


def is_of_list(track: TraceTrack) -> bool:
    """Return whether ``track`` is part of the list that autograd's older profiler writes."""
    return _LIST.fullmatch(track.pid) is not None


def find_device_tracks(tracks: Sequence[TraceTrack]) -> list[DeviceTrack]:
    """Return the kind, device and stream of each row, in the order of the rows."""
    streamed = {track.pid for track in tracks if _STREAM.match(track.thread)}
    working = streamed | {track.pid for track in tracks if track.thread == _XLA_WORK}
    is_ascend = any(_ASCEND.search(track.process) for track in tracks)
    kinds = []
    for track in tracks:
        is_work = _is_work(track, has_streams=track.pid in streamed)
        is_summary = track.pid in working if _XLA.search(track.process) else is_ascend
        kinds.append(_kind(track, is_work=is_work, is_summary=is_summary))
    works = [track for track, kind in zip(tracks, kinds, strict=True) if kind == TrackKind.WORK]
    device_of = _device_numbers(works)
    return [
        DeviceTrack(kind, *_numbers(track, device_of))
        for track, kind in zip(tracks, kinds, strict=True)
    ]


def _numbers(track: TraceTrack, device_of: Mapping[str, int]) -> tuple[int, int]:
    if is_of_list(track):
        return _whole(track.tid), _LIST_STREAM
    return device_of.get(track.pid, _whole(track.pid)), _stream(track)


def _is_work(track: TraceTrack, *, has_streams: bool) -> bool:
    is_ops = track.thread == _XLA_WORK and not has_streams
    return is_ops or _STREAM.match(track.thread) is not None


def _kind(track: TraceTrack, *, is_work: bool, is_summary: bool) -> TrackKind:
    if functions := _LIST.fullmatch(track.pid):
        return TrackKind.OPERATORS if functions[1] == "CPU" else TrackKind.WORK
    if is_summary and _ASCEND_SUMMARY.search(track.process):
        return TrackKind.SUMMARY
    if not any(map(_DEVICE.search, (track.process, track.labels, track.pid))):
        return TrackKind.OPERATORS if _XLA_HOST.search(track.process) else TrackKind.HOST
    if is_work:
        return TrackKind.WORK
    return TrackKind.SUMMARY if is_summary else TrackKind.UNKNOWN


def _device_numbers(works: Sequence[TraceTrack]) -> dict[str, int]:
    processes = {track.pid: track for track in works}
    named = {
        pid: int(match[1])
        for pid, track in processes.items()
        if (
            match := _NUMBER.search(track.process[-_ENDING:])
            or _NUMBER.search(track.labels[-_ENDING:])
        )
        and len(match[1]) < 5
    }
    if len(named) == len(processes) == len(set(named.values())):
        return named
    return {pid: at for at, pid in enumerate(processes)}


def _stream(track: TraceTrack) -> int:
    match = _STREAM.match(track.thread)
    return int(match[1]) if match and len(match[1]) < 19 else _whole(track.tid)


def _whole(text: str) -> int:
    return int(text) if _WHOLE.fullmatch(text) else NONE
