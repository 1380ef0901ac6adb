"""Row builders, each of which converts entries of one kind to rows of a table.

An entry without a usable time is dropped and logged as damage. Any other missing value is NONE.
"""

from __future__ import annotations

from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.reading.entries import Args, Complete, FlowStart, Instant, MemoryArgs
from otel_mlperf.kineto.reading.times import NO_TIME, find_timeless
from otel_mlperf.kineto.reading.value_columns import (
    Growing,
    Index,
    NameIndex,
    Whole,
    narrowed,
    time_column,
    whole_column,
    whole_columns,
)
from otel_mlperf.kineto.trace_events import FIRST_TEXT_ID, NONE, Allocations, Events, Flows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.reading.damage import DamageLog
    from otel_mlperf.kineto.reading.record_numbers import RecordNumbers
    from otel_mlperf.kineto.reading.value_columns import TrackTable

MAX_KINDS: Final = 256
"""Maximum number of categories, so that an index fits a byte. All further ones share the last."""
FLOW_NAMES: Final = {
    "async": "ac2g",
    "async_gpu": "ac2g",
    "async_cpu_to_gpu": "ac2g",
    "async_npu": "ac2g",
    "cpu_to_cuda": "ac2g",
    "forward_backward": "fwdbwd",
    "fwd_bwd": "fwdbwd",
}
"""Kind of an arrow by the name that older versions and other profilers use for it."""
_NARROW: Final = ("device", "device_type")
_ARGS: Final[dict[str, Whole]] = {
    name: np.int16 if name in _NARROW else np.int64 for name in Args.__struct_fields__
}
_MEMORY_ARGS: Final[dict[str, Whole]] = {
    name: np.int16 if name in _NARROW else np.int64 for name in MemoryArgs.__struct_fields__
}
_NARROWED: Final = _ARGS.keys() | {"position", "name", "track"}
_NUMBER: Final = "number"
_OTHER_CORRELATION: Final = "correlation_id"
_NO_COLUMNS: Final = (_NUMBER, _OTHER_CORRELATION)
"""Arguments that are not stored as columns."""
_MEMORY: Final = ("memory",)
_NO_ARGS: Final = Args()
_NO_MEMORY_ARGS: Final = MemoryArgs()
_NAME: Final = attrgetter("name")
_CATEGORY: Final = attrgetter("cat")
_ID: Final = attrgetter("id")


class EventRows:
    """Builder of the rows of events with a duration."""

    def __init__(self, tracks: TrackTable, numbers: RecordNumbers, damage: DamageLog) -> None:
        self._tracks = tracks
        self._numbers = numbers
        self._damage = damage
        self.timeless_work = 0
        """Number of records on streams that were dropped because they have no usable time."""
        self._names = NameIndex()
        self._categories = Index(str.lower, MAX_KINDS)
        self._rows = Growing(
            start_ns=np.int64,
            duration_ns=np.int64,
            position=np.int64,
            name=np.int32,
            category=np.uint8,
            track=np.int32,
            **_as_columns(_ARGS),
        )

    def add(self, events: list[Complete], positions: NDArray[np.int64]) -> None:
        """Add events; ``positions`` are the byte offsets of their entries."""
        start = time_column("ts", events, positions, self._damage)
        duration = time_column("dur", events, positions, self._damage)
        # Checking the minima suffices for an intact file, because NO_TIME is the smallest integer
        # and thus also below zero.
        if start.min() == NO_TIME or duration.min() < 0:
            self._count_negative(events, start, duration, positions)
            good = (start != NO_TIME) & (duration >= 0)
            events, positions = _chosen(events, good), positions[good]
            start, duration = start[good], duration[good]
        count = len(events)
        args = [event.args or _NO_ARGS for event in events]
        columns = whole_columns(args, _ARGS, positions, self._damage)
        other = columns[_OTHER_CORRELATION]
        if (other > 0).any():
            is_missing = columns["correlation"] == NONE
            columns["correlation"] = np.where(is_missing, other, columns["correlation"])
        category = self._categories.column(map(_CATEGORY, events), count, np.uint8)
        self._numbers.add(columns[_NUMBER], start, category, self.categories())
        self._rows.add(
            count,
            start_ns=start,
            duration_ns=duration,
            position=positions,
            name=self._names.column(map(_NAME, events), count, np.int32),
            category=category,
            track=self._tracks.column(events, positions),
            **_as_columns(columns),
        )

    def _count_negative(
        self,
        events: list[Complete],
        start: NDArray[np.int64],
        duration: NDArray[np.int64],
        positions: NDArray[np.int64],
    ) -> None:
        """Log records of negative duration as damage: the profiler never filled in their end."""
        is_negative = (start != NO_TIME) & (duration != NO_TIME) & (duration < 0)
        for row in np.flatnonzero(is_negative).tolist():
            self.timeless_work += (events[row].args or _NO_ARGS).stream not in (NONE, None)
            example = f"{events[row].name}: {duration[row]} ns"
            self._damage.add("negative_duration", int(positions[row]), example)

    def finish(self, base_ns: int) -> Events:
        """Return all events in the order of the file, with ``base_ns`` added to their times."""
        columns = _shifted(self._rows.columns(), "start_ns", base_ns, self._damage)
        columns = self._timed(columns, base_ns)
        for name in columns.keys() & _NARROWED:
            columns[name] = narrowed(columns[name])
        position = columns["position"]
        if np.any(position[1:] < position[:-1]):
            # Pairs of start and end are added when the end is read. Sorting by byte offset restores
            # the order of the file.
            order = np.argsort(position, kind="stable")
            columns = {name: column[order] for name, column in columns.items()}
        return Events(**columns)

    def _timed(self, columns: dict[str, NDArray[Any]], zero_ns: int) -> dict[str, NDArray[Any]]:
        """Return the columns without records whose time the profiler never filled in.

        A single such record would widen the window by days. ``zero_ns`` is the time of ``ts`` 0.
        """
        lost = find_timeless(columns, zero_ns)
        if not len(lost):
            return columns
        self.timeless_work += int(np.count_nonzero(columns["stream"][lost] != NONE))
        first = {name: int(column[lost[0]]) for name, column in columns.items()}
        example = f"{self.names()[first['name']]}: at {first['start_ns'] - zero_ns} ns"
        self._damage.add("no_time", first["position"], example, times=len(lost))
        return {name: np.delete(column, lost) for name, column in columns.items()}

    def names(self) -> list[str]:
        """Return the names to which ``Events.name`` refers by index."""
        return self._names.things()

    def categories(self) -> list[str]:
        """Return the categories to which ``Events.category`` refers by index."""
        return self._categories.things()


class FlowRows:
    """Builder of the rows of starts and ends of arrows."""

    def __init__(self, tracks: TrackTable, damage: DamageLog) -> None:
        self._tracks = tracks
        self._damage = damage
        self._kinds = Index(_flow_kind, MAX_KINDS)
        self._rows = Growing(
            kind=np.uint8, id=np.int64, starts=np.bool_, time_ns=np.int64, track=np.int32
        )

    def add(self, ends: list[Any], positions: NDArray[np.int64]) -> None:
        """Add starts and ends of arrows; ``positions`` are the byte offsets of their entries."""
        time = time_column("ts", ends, positions, self._damage)
        ids = self._ids(ends, positions)
        good = (time != NO_TIME) & (ids != NONE)
        if not good.all():
            ends, positions = _chosen(ends, good), positions[good]
        self._rows.add(
            len(ends),
            kind=self._kinds.column(map(_CATEGORY, ends), len(ends), np.uint8),
            id=ids[good],
            starts=np.array([type(end) is FlowStart for end in ends], np.bool_),
            time_ns=time[good],
            track=self._tracks.column(ends, positions),
        )

    def _ids(self, ends: list[Any], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        try:
            return np.fromiter(map(_ID, ends), np.int64, len(ends))
        except (TypeError, ValueError, OverflowError):
            numbered = [FlowStart(id=_text_number(end.id)) for end in ends]
            return whole_column("id", numbered, np.int64, positions, self._damage)

    def finish(self, base_ns: int) -> Flows:
        """Return all starts and ends of arrows, with ``base_ns`` added to their times."""
        columns = _shifted(self._rows.columns(), "time_ns", base_ns, self._damage)
        return Flows(**columns | {name: narrowed(columns[name]) for name in ("id", "track")})

    def kinds(self) -> list[str]:
        """Return the kinds of arrows to which ``Flows.kind`` refers by index."""
        return self._kinds.things()


class AllocationRows:
    """Builder of the rows of ``[memory]`` instants."""

    def __init__(self, tracks: TrackTable, numbers: RecordNumbers, damage: DamageLog) -> None:
        self._tracks = tracks
        self._numbers = numbers
        self._damage = damage
        self._rows = Growing(time_ns=np.int64, track=np.int32, **_as_columns(_MEMORY_ARGS))

    def add(self, instants: list[Instant], positions: NDArray[np.int64]) -> None:
        """Add the allocations among ``instants``; ``positions`` are the instants' byte offsets."""
        good = np.array([instant.name == "[memory]" for instant in instants], np.bool_)
        instants, positions = _chosen(instants, good), positions[good]
        time = time_column("ts", instants, positions, self._damage)
        good = time != NO_TIME
        instants, positions, time = _chosen(instants, good), positions[good], time[good]
        args = [instant.args or _NO_MEMORY_ARGS for instant in instants]
        columns = whole_columns(args, _MEMORY_ARGS, positions, self._damage)
        self._numbers.add(columns[_NUMBER], time, np.zeros(len(time), np.uint8), _MEMORY)
        self._rows.add(
            len(instants),
            time_ns=time,
            track=self._tracks.column(instants, positions),
            **_as_columns(columns),
        )

    def finish(self, base_ns: int) -> Allocations:
        """Return all allocations, with ``base_ns`` added to their times."""
        return Allocations(**_shifted(self._rows.columns(), "time_ns", base_ns, self._damage))


def _as_columns(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: column for name, column in columns.items() if name not in _NO_COLUMNS}


def _text_number(ident: Any) -> Any:
    """Return a negative number, derived from a digest, for a text id; numbers stay unchanged."""
    if not isinstance(ident, str) or not ident or ident.removeprefix("-").isdecimal():
        return ident
    digest = blake2b(ident.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return FIRST_TEXT_ID - int.from_bytes(digest)


def _flow_kind(category: str) -> str:
    return FLOW_NAMES.get(category.lower(), category.lower())


def _chosen(entries: list[Any], good: NDArray[np.bool_]) -> list[Any]:
    if good.all():
        return entries
    return list(map(entries.__getitem__, np.flatnonzero(good).tolist()))


def _shifted(
    columns: dict[str, NDArray[Any]], time: str, base_ns: int, damage: DamageLog
) -> dict[str, NDArray[Any]]:
    """Return the columns with ``base_ns`` added to column ``time``; drop times beyond 64 bits."""
    start, limit = columns[time], np.iinfo(np.int64).max - base_ns
    length = columns.get("duration_ns", np.zeros(1, np.int64))
    # The maximum duration is checked first, because a column of all ends would waste memory.
    if len(start) and int(start.max()) + max(0, int(length.max())) > limit:
        good = start <= limit - np.maximum(length, 0)
        lost = int(np.flatnonzero(~good)[0])
        offset = int(columns["position"][lost]) if "position" in columns else 0
        times = int(len(good) - good.sum())
        damage.add("out_of_range", offset, f"{time}: {start[lost]}", times=times)
        columns = {name: column[good] for name, column in columns.items()}
    columns[time] += base_ns
    return columns
