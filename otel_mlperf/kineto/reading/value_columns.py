"""Columns of the values of many entries, at a cost of some nanoseconds per value.

numpy converts an attribute of all entries in one call. If numpy rejects the values, they are
checked one by one, and damage is logged. Repeated values (names, categories, rows of the timeline)
are numbered, and the column contains the numbers.
"""

from __future__ import annotations

import re
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec.structs import astuple

from otel_mlperf.kineto.reading.times import NO_TIME, parse_times, why_no_time
from otel_mlperf.kineto.trace_events import NONE, TraceTrack

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    import msgspec
    from numpy.typing import DTypeLike, NDArray

    from otel_mlperf.kineto.reading.damage import DamageLog
    from otel_mlperf.kineto.reading.entries import Meta

Whole = type[np.signedinteger[Any]]
LONGEST_WHOLE: Final = 20
"""Maximum number of characters of a 64-bit number."""
FEWEST_ROWS: Final = 1 << 12
_POINTER: Final = re.compile(r"0x[0-9a-f]{1,16}", re.IGNORECASE)
"""Stream in ROCm's runtime calls, which is an address instead of a number."""


class Index(dict[Any, int]):
    """Numbering of values in the order of their first lookup."""

    def __init__(self, key: Callable[[Any], Hashable] | None = None, most: int = 1 << 31) -> None:
        """Values with equal keys share a number (``key`` None: the value is its own key).

        Keys beyond ``most`` share the last number.
        """
        super().__init__()
        self._key = key
        self._most = most
        self._numbers: dict[Hashable, int] = {}

    def __missing__(self, value: Any) -> int:
        thing = self._key(value) if self._key else value
        number = self._numbers.get(thing)
        if number is None:
            number = len(self._numbers)
            if number >= self._most:
                return self._most - 1
            self._numbers[thing] = number
        self[value] = number
        return number

    def column(self, values: Iterable[Any], count: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return the number of each of the ``count`` values, as an array of ``dtype``."""
        return np.fromiter(map(self.__getitem__, values), dtype, count)

    def things(self) -> list[Any]:
        """Return the keys of the numbered values, in the order of their numbers."""
        return list(self._numbers)


MAX_NAMES: Final = 1 << 16
"""Maximum number of names stored unchanged, because each costs later stages some KB and µs."""
_MAX_PATTERNS: Final = 1 << 12
OTHER_NAMES: Final = "(other names)"
_DIGITS: Final = re.compile(r"\d+")
_STEP: Final = "ProfilerStep#"


class NameIndex(Index):
    """Numbering of names in bounded memory.

    After ``MAX_NAMES`` names, digits in new names are replaced (``op_#``), so that names that
    differ only in digits become one. If the resulting names exceed a limit as well, new names
    become ``OTHER_NAMES``. Names of steps never change.
    """

    def __missing__(self, value: str) -> int:
        numbers = self._numbers
        if len(numbers) < MAX_NAMES or value.startswith(_STEP):
            return super().__missing__(value)
        pattern = general_name(value)
        if pattern not in numbers and len(numbers) >= MAX_NAMES + _MAX_PATTERNS:
            pattern = OTHER_NAMES
        return numbers.setdefault(pattern, len(numbers))


def general_name(name: str) -> str:
    """Return a name with each run of digits replaced by ``#``."""
    return _DIGITS.sub("#", name)


def whole_columns(
    holders: Sequence[msgspec.Struct],
    dtypes: Mapping[str, Whole],
    positions: NDArray[np.int64],
    damage: DamageLog,
) -> dict[str, NDArray[np.signedinteger[Any]]]:
    """Return the fields of ``holders`` as columns; ``dtypes`` lists the type of every field."""
    values = chain.from_iterable(map(astuple, holders))
    try:
        # All fields in one call, because a call for each field would repeat the loop over entries.
        flat = np.fromiter(values, np.int64, len(holders) * len(dtypes))
    except (TypeError, ValueError, OverflowError):
        return {
            name: whole_column(name, holders, dtype, positions, damage)
            for name, dtype in dtypes.items()
        }
    columns = zip(dtypes.items(), flat.reshape(-1, len(dtypes)).T, strict=True)
    return {
        name: column
        if _fits(column, dtype)
        else whole_column(name, holders, dtype, positions, damage)
        for (name, dtype), column in columns
    }


def whole_column(
    attribute: str,
    holders: Sequence[Any],
    dtype: Whole,
    positions: NDArray[np.int64],
    damage: DamageLog,
) -> NDArray[np.signedinteger[Any]]:
    """Return an attribute of each holder as integers; NONE if it is missing or out of range."""
    take = attrgetter(attribute)
    try:
        column = np.fromiter(map(take, holders), np.int64, len(holders))
    except (TypeError, ValueError, OverflowError):
        pass
    else:
        if _fits(column, dtype):
            return column
    limits = np.iinfo(dtype)
    values = zip(map(take, holders), positions.tolist(), strict=True)
    wholes = (_whole(value, limits, attribute, position, damage) for value, position in values)
    return np.fromiter(wholes, dtype, len(holders))


def narrowed(column: NDArray[np.signedinteger[Any]]) -> NDArray[np.signedinteger[Any]]:
    """Return ``column`` in the narrowest integer type that fits all of its values."""
    for dtype in (np.int8, np.int16, np.int32):
        if _fits(column, dtype):
            return column.astype(dtype, copy=False)
    return column


def _fits(column: NDArray[Any], dtype: Whole) -> bool:
    if dtype is np.int64 or not len(column):
        return True
    limits = np.iinfo(dtype)
    return bool(column.min() >= limits.min and column.max() <= limits.max)


def _whole(
    value: Any, limits: np.iinfo[Any], attribute: str, position: int, damage: DamageLog
) -> int:
    if value is None:
        return NONE
    # Some tools write numbers as texts, or whole numbers as floats.
    text = str(value).removesuffix(".0")
    if attribute == "stream" and _POINTER.fullmatch(text):
        return NONE
    if not text.removeprefix("-").isdecimal() or len(text) > LONGEST_WHOLE:
        kind = "number_too_long" if text.removeprefix("-").isdecimal() else "wrong_type"
        damage.add(kind, position, f"{attribute}: {value!r:.80}")
        return NONE
    whole = int(text)
    if not limits.min <= whole <= limits.max:
        damage.add("out_of_range", position, f"{attribute}: {value!r:.80}")
        return NONE
    return whole


def time_column(
    attribute: str, holders: Sequence[Any], positions: NDArray[np.int64], damage: DamageLog
) -> NDArray[np.int64]:
    """Return a time of each holder in nanoseconds; unusable times become NO_TIME and are logged."""
    take = attrgetter(attribute)
    times = parse_times(lambda: map(take, holders), len(holders))
    if len(times) and times.min() == NO_TIME:
        for row in np.flatnonzero(times == NO_TIME).tolist():
            value = take(holders[row])
            example = f"{attribute}: {value!r:.80}"
            damage.add(why_no_time(value), int(positions[row]), example)
    return times


class Growing:
    """Columns of equal length that grow by blocks.

    The capacity is doubled if needed, because reserved memory that was never written is not in use.
    Collecting all blocks and joining them at the end would need twice the memory.
    """

    def __init__(self, **dtypes: DTypeLike) -> None:
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.empty(FEWEST_ROWS, dtype) for name, dtype in dtypes.items()
        }
        self._size = 0
        self._capacity = FEWEST_ROWS

    def add(self, count: int, **columns: NDArray[Any]) -> None:
        """Add one block of ``count`` rows to every column."""
        begin, self._size = self._size, self._size + count
        while self._size > self._capacity:
            self._double(begin)
        for name, array in self._arrays.items():
            array[begin : self._size] = columns[name]

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns, cut to their length; ``add`` must not be called afterwards."""
        for array in self._arrays.values():
            array.resize(self._size, refcheck=False)
        return self._arrays

    def _double(self, used: int) -> None:
        self._capacity *= 2
        for name, array in self._arrays.items():
            self._arrays[name] = np.empty(self._capacity, array.dtype)
            self._arrays[name][:used] = array[:used]


_PLACE: Final = attrgetter("pid", "tid")
_NAMED_BY: Final = {"process_name": "name", "thread_name": "name", "process_labels": "labels"}
"""Argument to store from an entry, by the kind of metadata."""


class TrackTable:
    """Numbering of the tracks of entries, with the names of tracks."""

    def __init__(self, damage: DamageLog) -> None:
        self._damage = damage
        self._index = Index(_texts)
        self._threads: dict[tuple[str | None, str | None], str] = {}
        self._processes: dict[str | None, str] = {}
        self._labels: dict[str | None, str] = {}

    def column(self, entries: Sequence[Any], positions: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the track of each entry; log entries without ``pid`` or ``tid`` as damage."""
        tracks: NDArray[np.int32] = self._index.column(map(_PLACE, entries), len(entries), np.int32)
        nameless = [number for place, number in self._index.items() if None in place]
        if nameless:
            for row in np.flatnonzero(np.isin(tracks, nameless)).tolist():
                self._damage.add("missing_field", int(positions[row]), "pid or tid")
        return tracks

    def name(self, entries: Sequence[Meta]) -> None:
        """Store the names and labels of processes and threads that metadata entries contain."""
        for entry in entries:
            pid, tid = _texts((entry.pid, entry.tid))
            name = (entry.args or {}).get(_NAMED_BY.get(entry.name, ""))
            if not isinstance(name, str):
                continue
            if entry.name == "process_name":
                self._processes[pid] = name
            elif entry.name == "thread_name":
                self._threads[pid, tid] = name
            else:
                self._labels[pid] = name

    def all(self) -> list[TraceTrack]:
        """Return the tracks in the order of their numbers."""
        return [
            TraceTrack(
                pid or "",
                tid or "",
                self._processes.get(pid, ""),
                self._threads.get((pid, tid), ""),
                self._labels.get(pid, ""),
            )
            for pid, tid in self._index.things()
        ]

    def silent(self) -> list[TraceTrack]:
        """Return the threads and streams that have a name but no entry."""
        known = set(self._index.things())
        return [
            TraceTrack(pid or "", tid or "", self._processes.get(pid, ""), name)
            for (pid, tid), name in self._threads.items()
            if (pid, tid) not in known
        ]


def _texts(place: tuple[Any, Any]) -> tuple[str | None, str | None]:
    """Return ``pid`` and ``tid`` as text, so that 7 and "7" are the same track."""
    pid, tid = place
    return None if pid is None else str(pid), None if tid is None else str(tid)
