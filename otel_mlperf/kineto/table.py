"""Where does each entry of ``traceEvents`` go?

Events with a duration become rows, ends of arrows and allocations rows of smaller tables, names of
threads and processes are looked up in the end; all else is counted only.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.columns import Blocks, Index, whole_column
from otel_mlperf.kineto.entries import (
    KINDS,
    PHASES,
    Args,
    Begin,
    Complete,
    End,
    FlowEnd,
    FlowStart,
    Instant,
    MemoryArgs,
    Meta,
)
from otel_mlperf.kineto.events import NONE, Allocations, Events, Flows, Track
from otel_mlperf.kineto.halves import Halves
from otel_mlperf.kineto.times import NO_TIME, parse_times, why_no_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_mlperf.kineto.damage import DamageLog

MOST_CATEGORIES: Final = 256
FLOW_NAMES: Final = {
    "async": "ac2g",
    "async_gpu": "ac2g",
    "async_cpu_to_gpu": "ac2g",
    "forward_backward": "fwdbwd",
    "fwd_bwd": "fwdbwd",
}
"""What versions before 2.0 call the two kinds of arrow."""
ARGS: Final = (
    "correlation",
    "external",
    "sequence",
    "forward_thread",
    "device",
    "stream",
    "bytes",
)
MEMORY_ARGS: Final = ("device_type", "device", "size", "address", "allocated", "reserved")
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}
_NO_ARGS: Final = Args()
_NO_MEMORY_ARGS: Final = MemoryArgs()
_TRACK: Final = attrgetter("pid", "tid")


class Table:
    """Takes entries block by block, in the order of the file."""

    def __init__(self, damage: DamageLog) -> None:
        self._damage = damage
        self._names = Index()
        self._categories = Index(str.lower, MOST_CATEGORIES)
        self._tracks = Index(_texts)
        self._flow_kinds = Index(lambda name: FLOW_NAMES.get(name.lower(), name.lower()), 256)
        self._threads: dict[tuple[str | None, str | None], str] = {}
        self._processes: dict[str | None, str] = {}
        self._halves = Halves(damage)
        self._codes = np.zeros(len(KINDS), np.int64)
        self._other_phases: dict[str, int] = {}
        self._events = Blocks(
            start_ns=np.int64,
            duration_ns=np.int64,
            position=np.int64,
            name=np.int32,
            category=np.uint8,
            track=np.int32,
            correlation=np.int64,
            external=np.int64,
            sequence=np.int64,
            forward_thread=np.int64,
            device=np.int16,
            stream=np.int64,
            bytes=np.int64,
        )
        self._flows = Blocks(
            kind=np.uint8, id=np.int64, starts=np.bool_, time_ns=np.int64, track=np.int32
        )
        self._allocations = Blocks(
            time_ns=np.int64,
            track=np.int32,
            device_type=np.int16,
            device=np.int16,
            size=np.int64,
            address=np.int64,
            allocated=np.int64,
            reserved=np.int64,
        )

    def add(self, entries: Sequence[Any], positions: NDArray[np.int64]) -> None:
        """Take the entries that stand at these byte offsets."""
        kinds = np.fromiter(map(_CODES.__getitem__, map(type, entries)), np.uint8, len(entries))
        counts = np.bincount(kinds, minlength=len(KINDS))
        self._codes += counts

        def those(*wanted: type) -> tuple[list[Any], NDArray[np.int64]]:
            codes = [_CODES[kind] for kind in wanted]
            if not counts[codes].any():
                return [], positions[:0]
            chosen = [entry for entry in entries if type(entry) in wanted]
            return chosen, positions[np.isin(kinds, codes)]

        self._add_events(*those(Complete))
        self._add_flows(*those(FlowStart, FlowEnd))
        self._add_instants(*those(Instant))
        self._add_names(those(Meta)[0])
        halves, at = those(Begin, End)
        if halves:
            pairs = self._halves.pair(zip(halves, at.tolist(), strict=True))
            self._add_events([e for e, _ in pairs], np.array([p for _, p in pairs], np.int64))

    def add_unknown(self, phase: str) -> None:
        """Count an entry of a phase that the format does not have."""
        known = phase in self._other_phases or len(self._other_phases) < MOST_CATEGORIES
        key = phase if known else ""
        self._other_phases[key] = self._other_phases.get(key, 0) + 1

    def _add_events(self, events: list[Complete], positions: NDArray[np.int64]) -> None:
        start = self._times("ts", events, positions)
        duration = self._times("dur", events, positions)
        good = (start != NO_TIME) & (duration != NO_TIME)
        if not good.all():
            events, positions = _chosen(events, good), positions[good]
            start, duration = start[good], duration[good]
        negative = np.flatnonzero(duration < 0)
        if len(negative):
            first = int(negative[0])
            place = int(positions[first])
            self._damage.add("negative_duration", place, events[first].name, times=len(negative))
        count = len(events)
        args = [event.args or _NO_ARGS for event in events]
        self._events.add(
            start_ns=start,
            duration_ns=duration,
            position=positions,
            name=self._names.of([event.name for event in events], count, np.int32),
            category=self._categories.of([event.cat for event in events], count, np.uint8),
            track=self._track(events, positions),
            **{
                name: whole_column(name, args, self._events.dtypes[name], positions, self._damage)
                for name in ARGS
            },
        )

    def _add_flows(self, ends: list[Any], positions: NDArray[np.int64]) -> None:
        if not ends:
            return
        time = self._times("ts", ends, positions)
        ids = whole_column("id", ends, np.int64, positions, self._damage)
        good = (time != NO_TIME) & (ids != NONE)
        if not good.all():
            ends, positions = _chosen(ends, good), positions[good]
        self._flows.add(
            kind=self._flow_kinds.of([end.cat for end in ends], len(ends), np.uint8),
            id=ids[good],
            starts=np.fromiter((type(end) is FlowStart for end in ends), np.bool_, len(ends)),
            time_ns=time[good],
            track=self._track(ends, positions),
        )

    def _add_instants(self, instants: list[Instant], positions: NDArray[np.int64]) -> None:
        good = np.fromiter((i.name == "[memory]" for i in instants), np.bool_, len(instants))
        instants, positions = _chosen(instants, good), positions[good]
        time = self._times("ts", instants, positions)
        good = time != NO_TIME
        instants, positions = _chosen(instants, good), positions[good]
        if not instants:
            return
        args = [instant.args or _NO_MEMORY_ARGS for instant in instants]
        self._allocations.add(
            time_ns=time[good],
            track=self._track(instants, positions),
            **{
                name: whole_column(
                    name, args, self._allocations.dtypes[name], positions, self._damage
                )
                for name in MEMORY_ARGS
            },
        )

    def _add_names(self, entries: list[Meta]) -> None:
        for entry in entries:
            pid, tid = _texts((entry.pid, entry.tid))
            name = (entry.args or {}).get("name")
            if not isinstance(name, str):
                continue
            if entry.name == "process_name":
                self._processes[pid] = name
            elif entry.name == "thread_name":
                self._threads[pid, tid] = name

    def _times(
        self, field: str, entries: list[Any], positions: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        values = list(map(attrgetter(field), entries))
        times = parse_times(values)
        for row in np.flatnonzero(times == NO_TIME).tolist():
            kind = why_no_time(values[row])
            self._damage.add(kind, int(positions[row]), f"{field}: {values[row]!r:.80}")
        return times

    def _track(self, entries: list[Any], positions: NDArray[np.int64]) -> NDArray[np.int32]:
        tracks = self._tracks.of(map(_TRACK, entries), len(entries), np.int32)
        nameless = [number for track, number in self._tracks.items() if None in track]
        for row in np.flatnonzero(np.isin(tracks, nameless)).tolist() if nameless else ():
            self._damage.add("missing_field", int(positions[row]), "pid or tid")
        return tracks

    def finish(self, base_ns: int) -> tuple[Events, Flows, Allocations]:
        """The columns, with times from the zero that ``base_ns`` is; the table is empty then."""
        self._halves.close()
        events = _shifted(self._events.columns(), "start_ns", base_ns, self._damage)
        return (
            Events(**_in_file_order(events)),
            Flows(**_shifted(self._flows.columns(), "time_ns", base_ns, self._damage)),
            Allocations(**_shifted(self._allocations.columns(), "time_ns", base_ns, self._damage)),
        )

    def counts(self) -> dict[str, int]:
        """Entries by their phase."""
        known = zip(PHASES.values(), self._codes.tolist(), strict=True)
        return {phase: count for phase, count in known if count} | self._other_phases

    def names(self) -> list[str]:
        """What ``Events.name`` points to."""
        return self._names.things()

    def categories(self) -> list[str]:
        """What ``Events.category`` points to."""
        return self._categories.things()

    def flow_kinds(self) -> list[str]:
        """What ``Flows.kind`` points to."""
        return self._flow_kinds.things()

    def tracks(self) -> list[Track]:
        """What the ``track`` columns point to, with the names that the file gives them."""
        return [
            Track(
                pid or "",
                tid or "",
                self._processes.get(pid, ""),
                self._threads.get((pid, tid), ""),
            )
            for pid, tid in self._tracks.things()
        ]


def _texts(track: tuple[Any, Any]) -> tuple[str | None, str | None]:
    """Numbers as decimal text, so that 7 and "7" are the same track."""
    pid, tid = track
    return None if pid is None else str(pid), None if tid is None else str(tid)


def _chosen(entries: list[Any], chosen: NDArray[np.bool_]) -> list[Any]:
    return [entry for entry, good in zip(entries, chosen.tolist(), strict=True) if good]


def _shifted(
    columns: dict[str, NDArray[Any]], time: str, base_ns: int, damage: DamageLog
) -> dict[str, NDArray[Any]]:
    """The columns with ``base_ns`` added; rows that 64 bits cannot hold, or the end of, are lost."""
    start, limits = columns[time], np.iinfo(np.int64)
    length = np.maximum(columns["duration_ns"], 0) if "duration_ns" in columns else 0
    good = (start <= limits.max - max(base_ns, 0) - length) & (
        start >= limits.min // 2 - min(base_ns, 0)
    )
    if not good.all():
        lost = int(np.flatnonzero(~good)[0])
        offset = int(columns["position"][lost]) if "position" in columns else 0
        times = int(len(good) - good.sum())
        damage.add("out_of_range", offset, f"{time}: {start[lost]}", times=times)
        columns = {name: column[good] for name, column in columns.items()}
    columns[time] += base_ns
    return columns


def _in_file_order(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Sorted by position: pairs of begin and end become known only at their end."""
    position = columns["position"]
    if np.all(position[1:] >= position[:-1]):
        return columns
    order = np.argsort(position, kind="stable")
    return {name: column[order] for name, column in columns.items()}
