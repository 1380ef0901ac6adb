"""Streams of launches: the stream on which each launch was to run, observed or inferred.

The stream of an answered launch is that of its record. For an unanswered launch the first of these
sources that is known decides:

- the stream where its arrow ends: the arrow often outlives the record;
- the stream of more than half of the answered launches of the same kind and operator;
- the only stream that has a name and no record, if there is exactly one;
- the stream of more than half of the launches of that operator, else of that thread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace

_NAME: Final = re.compile(r"stream ", re.IGNORECASE)
_WIDTH: Final = 1 << 8


def find_streams(trace: Trace, work: Work) -> list[tuple[int, int]]:
    """Return device and stream: those of the work, then those with a name and no work."""
    named = {
        (int(track.pid), int(track.tid))
        for track in (*trace.tracks, *trace.silent_tracks)
        if _NAME.match(track.thread) and track.pid.isdecimal() and track.tid.isdecimal()
    }
    return [*work.streams, *sorted(named - set(work.streams))]


def guess_streams(
    trace: Trace,
    links: Links,
    rows: NDArray[np.intp],
    kind: NDArray[np.uint8],
    stream: NDArray[np.int64],
    streams: list[tuple[int, int]],
) -> NDArray[np.int64]:
    """Return the streams of launches; NONE where no source is known.

    Args:
        trace: what was read.
        links: the result of ``link`` for it.
        rows: rows of the launches, by start.
        kind: kind of each launch.
        stream: stream of each launch, NONE if it was not answered.
        streams: device and stream of each stream number.
    """
    silent = np.setdiff1d(np.arange(len(streams)), stream)
    operator = np.append(trace.events.name, NONE)[links.parent[rows]].astype(np.int64)
    thread = trace.events.track[rows].astype(np.int64)
    guesses = [_by_arrow(trace, rows, streams), _usual(operator * _WIDTH + kind, stream)]
    if len(silent) == 1:
        guesses.append(np.full(len(rows), silent[0]))
    guesses += [_usual(operator, stream), _usual(thread, stream)]
    for guess in guesses:
        stream = np.where(stream == NONE, guess, stream)
    return stream


def _by_arrow(
    trace: Trace, rows: NDArray[np.intp], streams: list[tuple[int, int]]
) -> NDArray[np.int64]:
    """Return the stream where the arrow of each launch ends."""
    flows = trace.flows
    number = {(str(device), str(stream)): at for at, (device, stream) in enumerate(streams)}
    of_track = [number.get((track.pid, track.tid), NONE) for track in trace.tracks]
    stream = np.array(of_track or [NONE], np.int64)[flows.track]
    ends = np.flatnonzero(~flows.starts & (stream != NONE))
    if not len(ends):
        return np.full(len(rows), NONE, np.int64)
    ends = ends[np.argsort(flows.id[ends], kind="stable")]
    wanted = trace.events.correlation[rows]
    at = np.minimum(np.searchsorted(flows.id[ends], wanted), len(ends) - 1)
    return np.where(flows.id[ends[at]] == wanted, stream[ends[at]], NONE)


def _usual(group: NDArray[np.int64], stream: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the stream of more than half of the launches of the same group, NONE without one."""
    known, width = stream != NONE, int(stream.max(initial=0)) + 1
    groups, place = np.unique(group, return_inverse=True)
    pairs, uses = np.unique(place[known] * width + stream[known], return_counts=True)
    of_groups = np.bincount(place[known], minlength=len(groups))
    pairs = pairs[2 * uses > of_groups[pairs // width]]
    usual = np.full(len(groups), NONE, np.int64)
    usual[pairs // width] = pairs % width
    return usual[place]
