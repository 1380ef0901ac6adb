"""Unanswered launches: calls that launch device work of which the trace has no record.

A runtime or driver call that launches a kernel, or copies or sets memory, is answered by the device
record with the same correlation. No answer is expected for a call

- within the capture of a graph, which runs nothing;
- in a trace in which CUPTI measured ranges of kernels, because it then records no single kernels;
- inside another launch, or around an answered launch: a driver call inside a runtime call;
- of zero bytes: a copy or memset that returned in less than half of the shortest time of any
  answered launch (cuDNN sets empty workspaces like that).

Each launch of a graph runs the same kernels: if a launch has fewer records of kernels than other
launches of the graph, these records are missing.

The stream of an answered launch is that of its record. The stream of an unanswered launch is
determined by the first of these sources that is known:

- the stream where its arrow ends: the arrow is often present although the record is missing;
- the stream of more than half of the answered launches of the same kind and operator;
- the only stream that has a name and no record, if there is exactly one;
- the stream of more than half of the launches of that operator, else of that thread.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.counting.window_losses import (
    COPY,
    GRAPH,
    GRAPH_NODE,
    KERNEL,
    MEMSET,
    TOLERATED_SHARE,
)
from otel_mlperf.kineto.linking.linked_events import Role, find_roles
from otel_mlperf.kineto.linking.threads import Innermost
from otel_mlperf.kineto.trace_events import NONE
from otel_mlperf.store.window_facts import Loss

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.counting.device_work import Work
    from otel_mlperf.kineto.linking.linked_events import Links
    from otel_mlperf.kineto.trace_events import Trace


KINDS: Final = (GRAPH, COPY, MEMSET, KERNEL)
_PATTERNS: Final = (r"GraphLaunch", r"[Mm]emcpy", r"[Mm]emset", r"Launch(?!Host)")
_KNOWN: Final = re.compile(r"cu|hip|ur[A-Z]|ze[A-Z]|sycl")
"""Prefixes of the names of CUDA, ROCm and XPU calls; calls of other runtimes are not recognised."""
_NO_LAUNCH: Final = re.compile(r"Node|Attribute|GetInfo|Symbol(?:Address|Size)|PrefetchBatch")
_CAPTURE_BEGINS, _CAPTURE_ENDS = re.compile(r"BeginCapture"), re.compile(r"EndCapture")
_RANGES: Final = "cuda_profiler_range"
_MIN_CALL_NS: Final = 1_000
"""Minimum duration of a copy or memset that moves bytes, used if no launch was answered."""


class Launches(NamedTuple):
    """Calls that launch device work and for which a device record is expected, ordered by start.

    Every array except ``kind_of`` has one item for each call.
    """

    rows: NDArray[np.intp]
    kind: NDArray[np.uint8]
    """Index into ``KINDS``."""
    answer: NDArray[np.int32]
    """Index into the device work of the call's first record; NONE if the call has no record."""
    stream: NDArray[np.int64]
    """Index into ``streams`` of the known or guessed stream of the work; NONE if not known."""
    streams: list[tuple[int, int]]
    """Device and stream numbers, first of streams with recorded work, then of the other streams."""
    kind_of: NDArray[np.uint8]
    """Index into ``KINDS`` for each event of the trace; ``len(KINDS)`` if it is not a launch."""

    @property
    def lack_many(self) -> bool:
        """Whether over 0.1 % of all launches, or all launches of one kind, lack a device record."""
        missing = np.bincount(self.kind[self.is_missing], minlength=len(KINDS))
        of = np.bincount(self.kind, minlength=len(KINDS))
        is_none_left = bool(((missing == of) & (of > 0)).any())
        return is_none_left or bool(missing.sum() > TOLERATED_SHARE * of.sum())

    def kind_of_calls(self, call: NDArray[np.int32]) -> NDArray[np.uint8]:
        """Return the launch kind of each row in ``call``; ``len(KINDS)`` if it is not a launch."""
        return np.append(self.kind_of, np.uint8(len(KINDS)))[call]

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        """Whether the device record of each launch is missing."""
        missing: NDArray[np.bool_] = self.answer == NONE
        return missing


def launch_kinds(trace: Trace) -> NDArray[np.uint8]:
    """Return the index into ``KINDS`` of each event; ``len(KINDS)`` if it is not a launch."""
    of_name = [_kind(name) for name in trace.names] or [len(KINDS)]
    kind: NDArray[np.uint8] = np.array(of_name, np.uint8)[trace.events.name]
    kind[find_roles(trace) != Role.CALL] = len(KINDS)
    return kind


def _kind(name: str) -> int:
    if _NO_LAUNCH.search(name) or not _KNOWN.match(name):
        return len(KINDS)
    found = (at for at, pattern in enumerate(_PATTERNS) if re.search(pattern, name))
    return next(found, len(KINDS))


def find_launches(trace: Trace, links: Links, work: Work) -> Launches:
    """Return the launches of a window, with their device records and streams."""
    kind_of = launch_kinds(trace)
    answer_of = _answers(links, work)
    rows = np.flatnonzero(kind_of < len(KINDS))
    rows = rows[_is_due(trace, links, rows, kind_of, answer_of)]
    rows = rows[np.argsort(trace.events.start_ns[rows], kind="stable")]
    answer = answer_of[rows]
    kind, stream = kind_of[rows], np.append(work.stream, NONE)[answer]
    streams = find_streams(trace, work)
    if (answer == NONE).any():
        stream = guess_streams(trace, links, rows, kind, stream, streams)
    return Launches(rows, kind, answer, stream, streams, kind_of)


def _answers(links: Links, work: Work) -> NDArray[np.int32]:
    answer = np.full(len(links.launch), NONE, np.int32)
    call = links.launch[work.rows]
    order = np.argsort(-work.start_ns, kind="stable")
    order = order[call[order] != NONE]
    answer[call[order]] = order  # Reverse order: the earliest record is written last.
    return answer


def _is_due(
    trace: Trace,
    links: Links,
    rows: NDArray[np.intp],
    kind_of: NDArray[np.uint8],
    answer_of: NDArray[np.int32],
) -> NDArray[np.bool_]:
    events = trace.events
    is_answered: NDArray[np.bool_] = answer_of[rows] != NONE
    if is_answered.all() or _RANGES in trace.categories:
        return is_answered
    above = links.around[rows]
    is_inner = (above != NONE) & (np.append(kind_of, len(KINDS))[above] < len(KINDS))
    is_outer = np.isin(rows, above[is_inner & is_answered])
    took = events.duration_ns[rows]
    shortest = took[is_answered].min() // 2 if is_answered.any() else _MIN_CALL_NS
    is_empty = (took < shortest) & np.isin(kind_of[rows], (KINDS.index(COPY), KINDS.index(MEMSET)))
    is_idle: NDArray[np.bool_] = is_inner | is_outer | is_empty | _is_captured(trace, rows)
    return is_answered | ~is_idle


class Captures(NamedTuple):
    """Captures of CUDA graphs; every array has one item for each capture."""

    track: NDArray[np.signedinteger[Any]]
    start_ns: NDArray[np.int64]
    stop_ns: NDArray[np.int64]
    """The maximum of int64 if the capture did not end in the window."""


def find_captures(trace: Trace) -> Captures:
    """Return the CUDA graph captures of a trace.

    A capture lasts from a call that begins it to the next call of the same thread that ends one.
    """
    events = trace.events
    begins, ends = (_named(trace, name) for name in (_CAPTURE_BEGINS, _CAPTURE_ENDS))
    start = events.start_ns[begins]
    stop = np.full(len(begins), np.iinfo(np.int64).max)
    for track in np.unique(events.track[begins]).tolist():
        mine = events.track[begins] == track
        stops = np.sort(events.start_ns[ends[events.track[ends] == track]])
        stop[mine] = np.append(stops, np.iinfo(np.int64).max)[np.searchsorted(stops, start[mine])]
    return Captures(events.track[begins], start, stop)


def _is_captured(trace: Trace, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    events, captured = trace.events, np.zeros(len(rows), np.bool_)
    captures = find_captures(trace)
    for track in np.unique(captures.track).tolist():
        there, mine = captures.track == track, np.flatnonzero(events.track[rows] == track)
        cover = Innermost(captures.start_ns[there], captures.stop_ns[there])
        captured[mine] = cover.at(events.start_ns[rows[mine]]) != NONE
    return captured


def _named(trace: Trace, pattern: re.Pattern[str]) -> NDArray[np.intp]:
    wanted = np.array([bool(pattern.search(name)) for name in trace.names] or [False])
    return np.flatnonzero(wanted[trace.events.name] & (find_roles(trace) == Role.CALL))


def find_unanswered(trace: Trace, launches: Launches) -> list[Loss]:
    """Return one loss for each kind and stream with unanswered launches, largest loss first."""
    begin, losses = trace.events.start_ns[launches.rows], []
    width = len(launches.streams) + 1
    both = launches.kind.astype(np.int64) * width + launches.stream + 1
    for key in np.unique(both[launches.is_missing]).tolist():
        kind, stream = divmod(key, width)
        missing = launches.is_missing & (both == key)
        times = begin[missing]
        there = (begin >= times.min()) & (begin <= times.max()) & (both == key)
        device, number = launches.streams[stream - 1] if stream else (None, None)
        losses.append(
            Loss(
                kind=KINDS[kind],
                missing=int(missing.sum()),
                of=int((launches.kind == kind).sum()),
                start_ns=int(times.min()),
                end_ns=int(times.max()),
                of_part=int(there.sum()),
                device=device,
                stream=number,
            )
        )
    return sorted(losses, key=lambda loss: -loss.missing)


def find_lost_nodes(trace: Trace, links: Links, work: Work, launches: Launches) -> list[Loss]:
    """Return the loss of kernels that some launches of a CUDA graph lack and others have."""
    call = links.launch[work.rows]
    mine = np.flatnonzero(launches.kind_of_calls(call) == KINDS.index(GRAPH))
    nodes: dict[int, Counter[int]] = {}
    name = trace.events.name[work.rows[mine]]
    for launch, its_name in zip(call[mine].tolist(), name.tolist(), strict=True):
        nodes.setdefault(launch, Counter())[its_name] += 1
    lost = count_lost_nodes(nodes)
    if not lost:
        return []
    missing, start = sum(lost.values()), trace.events.start_ns[list(lost)]
    return [Loss(GRAPH_NODE, missing, len(mine) + missing, int(start.min()), int(start.max()))]


def count_lost_nodes(nodes: dict[int, Counter[int]]) -> dict[int, int]:
    """Return the number of missing nodes of each incomplete graph launch, by its row.

    ``nodes`` contains, for each launch, how often each kernel name occurs among its nodes. The
    trace does not record which launches are of the same graph. A launch is incomplete
    if no other launch has the same nodes, and if its nodes are at least half, but not all, of the
    nodes of a graph that was launched repeatedly. If a launch has unique nodes but fits no such
    graph, the result is empty: the launches might be pieces of a split graph with a shorter end.
    """
    groups: dict[frozenset[tuple[int, int]], list[int]] = {}
    for row, kinds in nodes.items():
        groups.setdefault(frozenset(kinds.items()), []).append(row)
    whole = [nodes[rows[0]] for rows in groups.values() if len(rows) > 1]
    lost = {}
    for rows in groups.values():
        if len(rows) > 1:
            continue
        there = nodes[rows[0]]
        lacks = [
            graph.total() - there.total()
            for graph in whole
            if there < graph and 2 * there.total() >= graph.total()
        ]
        if not lacks:
            return {}
        lost[rows[0]] = min(lacks)
    return lost


_NAME: Final = re.compile(r"stream ", re.IGNORECASE)
_WIDTH: Final = 1 << 8


def find_streams(trace: Trace, work: Work) -> list[tuple[int, int]]:
    """Return device and stream numbers: streams with work, then other streams that have a name."""
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
    """Return the known or guessed stream of each launch; NONE if no source determines it.

    Args:
        trace: the trace.
        links: the result of ``link`` for the trace.
        rows: rows of the launches, ordered by start.
        kind: kind of each launch, as an index into ``KINDS``.
        stream: known stream of each launch, NONE if it was not answered.
        streams: device and stream number of each stream.
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
    """Return, by launch, the stream of over half of its group's answered launches, else NONE."""
    known, width = stream != NONE, int(stream.max(initial=0)) + 1
    groups, place = np.unique(group, return_inverse=True)
    pairs, uses = np.unique(place[known] * width + stream[known], return_counts=True)
    of_groups = np.bincount(place[known], minlength=len(groups))
    pairs = pairs[2 * uses > of_groups[pairs // width]]
    usual = np.full(len(groups), NONE, np.int64)
    usual[pairs // width] = pairs % width
    return usual[place]
