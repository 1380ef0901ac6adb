"""Data types of a timeline: processes, tracks, lanes, slices, instants and points.

Viewers draw a slice as nested in another slice that starts earlier and ends later. Therefore a
slice shares the parent's lane only if the slice is truly nested. Overlapping siblings (tasks,
roll-ups) and children that outlive their parent are placed in separate lanes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable

    from otel_mlperf.store.table_reader import Store


_NODES_PID: Final = 1_000_000_000


class TrackKind(enum.IntEnum):
    """Kind of a track; the values determine the order of the tracks of a process."""

    STEPS = 0
    MARKS = 1
    THREAD = 2
    DEVICE = 3
    UNKNOWN = 4
    COUNTER = 5


@dataclass(frozen=True, eq=False, slots=True)
class TimelineProcess:
    """A process of the timeline: a rank between two restarts, or readings without a rank."""

    pid: int
    """Number by which viewers identify the process: the rank; after a restart, a higher number."""
    name: str


@dataclass(frozen=True, eq=False, slots=True)
class TimelineTrack:
    """A row of the timeline, which belongs to one process."""

    process: TimelineProcess
    kind: TrackKind
    name: str
    place: int
    """Index among the process's tracks of this kind from 0, in the order of their first item."""
    unit: str = ""
    """Unit of a counter (UCUM)."""
    rolls_up: bool = False
    """Whether the track contains roll-ups; then it is below the track with the same ``place``."""


class Slice(NamedTuple):
    """An interval on a track, such as a span or a step."""

    track: TimelineTrack
    start_ns: int
    end_ns: int
    name: str
    category: str
    arguments: dict[str, Any]
    span: int = 0
    """Id of the slice; 0: no slice refers to it."""
    parent: int = 0
    leads_to: tuple[int, ...] = ()
    """Ids of the slices on other tracks that this slice caused."""
    is_led: bool = False
    """Whether the parent is on another track and caused this slice."""


class Instant(NamedTuple):
    """An event without a duration on a track."""

    track: TimelineTrack
    time_ns: int
    name: str
    category: str
    arguments: dict[str, Any]


class Point(NamedTuple):
    """A counter value that is valid from ``time_ns`` until the next point of the track."""

    track: TimelineTrack
    time_ns: int
    value: float


class TimelineTracks:
    """Processes and tracks of a run; each is created on first use."""

    def __init__(self, store: Store) -> None:
        rows = store.rows(
            "SELECT rank, restart, any_value(host ORDER BY start_ns) FROM processes "
            "GROUP BY rank, restart"
        )
        self._hosts = {(rank, restart): host for rank, restart, host in rows}
        ((most,),) = store.rows(
            "SELECT max(rank) FROM (SELECT rank FROM processes UNION ALL SELECT rank FROM steps "
            "UNION ALL SELECT rank FROM spans)"
        )
        self._ranks = (most or 0) + 1
        self._processes: dict[tuple[int | None, int], TimelineProcess] = {}
        self._tracks: dict[Hashable, TimelineTrack] = {}
        self._places: dict[Hashable, int] = {}
        self._counts: dict[tuple[TimelineProcess, TrackKind], int] = {}

    def find(
        self,
        process: tuple[int | None, int],
        kind: TrackKind,
        name: str,
        known_by: Hashable = None,
        *,
        unit: str = "",
        rolls_up: bool = False,
    ) -> TimelineTrack:
        """Return the track of ``process`` (rank, restart) and ``kind`` whose key is ``known_by``.

        The key is ``name`` by default. A missing track is created. An existing track keeps its
        first name.
        """
        key = (process, kind, name if known_by is None else known_by)
        track = self._tracks.get((key, rolls_up))
        if track is None:
            owner = self._processes.get(process) or self._new_process(*process)
            # Roll-ups have the place of the track from which they were rolled up.
            place = self._places.setdefault(key, self._counts.get((owner, kind), 0))
            self._counts[owner, kind] = max(place + 1, self._counts.get((owner, kind), 0))
            shown = f"{name} · rolled up" if rolls_up else name
            track = TimelineTrack(owner, kind, shown, place, unit, rolls_up)
            self._tracks[key, rolls_up] = track
        return track

    def _new_process(self, rank: int | None, restart: int) -> TimelineProcess:
        if rank is None:
            hosts = sorted(set(self._hosts.values()))
            where = hosts[0] if len(hosts) == 1 else "all nodes"
            made = TimelineProcess(_NODES_PID, f"readings · {where}")
        else:
            # Viewers sort by name: all ranks are padded to equal length.
            digits = len(str(self._ranks - 1))
            name_parts = [f"rank {rank:0{digits}}", self._hosts.get((rank, restart), "")]
            name_parts += [f"restart {restart}"] if restart else []
            made = TimelineProcess(
                rank + restart * self._ranks, " · ".join(filter(None, name_parts))
            )
        self._processes[rank, restart] = made
        return made


class Placed(NamedTuple):
    """Lane of a placed slice, and the slices that ended by the start of that slice."""

    lane: int
    """Index of the lane of the track, from 0."""
    ended: list[tuple[int, int]]
    """Lane and end of slices that ended by the start of the placed slice, inner ones first."""


class _Open(NamedTuple):
    end: int
    span: int


class Lanes:
    """Lanes of one track, on which slices nest.

    Slices must be sorted by start, longer ones first, parents before children.
    """

    def __init__(self) -> None:
        self._lanes: list[list[_Open]] = []
        self._where: dict[int, int] = {}

    def place(self, start: int, end: int, span: int, parent: int) -> Placed:
        """Place a slice in a lane, where the slice is open until ``end``.

        ``span`` and ``parent`` are ids of slices; ``span`` is 0 if the slice has no children.
        """
        ended: list[tuple[int, int]] = []
        lane = self._below_parent(start, end, parent, ended)
        if lane is None:
            lane = self._elsewhere(start, end, parent in self._where, ended)
        self._lanes[lane].append(_Open(end, span))
        if span:
            self._where[span] = lane
        return Placed(lane, ended)

    def close(self) -> list[tuple[int, int]]:
        """Close all open slices; return the lane and end of each, inner slices first."""
        ended = [
            (number, open_slice.end)
            for number, lane in enumerate(self._lanes)
            for open_slice in reversed(lane)
        ]
        self._lanes, self._where = [], {}
        return ended

    def _below_parent(
        self, start: int, end: int, parent: int, ended: list[tuple[int, int]]
    ) -> int | None:
        lane = self._where.get(parent)
        if lane is None:
            return None
        self._leave(lane, start, parent, ended)
        top = self._lanes[lane][-1] if self._lanes[lane] else None
        return lane if top is not None and top.span == parent and end <= top.end else None

    def _elsewhere(
        self, start: int, end: int, is_related: bool, ended: list[tuple[int, int]]
    ) -> int:
        """Return the first free lane; if no lane is free, add one.

        A lane is free if no slice is open in it. Unless ``is_related`` (the slice has a parent), a
        lane whose innermost open slice encloses the slice is also free.
        """
        # First fit: a track has no more lanes than concurrent slices.
        for number, lane in enumerate(self._lanes):
            self._leave(number, start, 0, ended)
            if not lane or (not is_related and end <= lane[-1].end):
                return number
        self._lanes.append([])
        return len(self._lanes) - 1

    def _leave(self, number: int, start: int, parent: int, ended: list[tuple[int, int]]) -> None:
        """Close the slices of a lane that end by ``start``.

        The slice ``parent`` stays open if it ends exactly at ``start``, because its child might be
        empty.
        """
        lane = self._lanes[number]
        while lane and lane[-1].end <= start:
            if lane[-1].end == start and parent and lane[-1].span == parent:
                return
            closed = lane.pop()
            ended.append((number, closed.end))
            if self._where.get(closed.span) == number:
                del self._where[closed.span]
