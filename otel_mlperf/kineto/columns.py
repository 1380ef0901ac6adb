"""How do the values of many entries become a column, at some nanoseconds each?

Values are taken attribute by attribute, so that numpy converts a column at once. What it refuses is
looked at value by value, and counted.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.events import NONE
from otel_mlperf.kineto.times import NO_TIME, parse_times, why_no_time

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from numpy.typing import DTypeLike, NDArray

    from otel_mlperf.kineto.damage import DamageLog

LONGEST_WHOLE: Final = 20
"""Characters of the longest number that 64 bits can hold."""


class Index(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __init__(self, key: Callable[[Any], Hashable] | None = None, most: int = 1 << 31) -> None:
        """``key`` says what is the same thing; all beyond ``most`` are the last."""
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
        """The number of each of the ``count`` values."""
        return np.fromiter(map(self.__getitem__, values), dtype, count)

    def things(self) -> list[Any]:
        """What the numbers stand for."""
        return list(self._numbers)


def whole_column(
    attribute: str,
    holders: Sequence[Any],
    dtype: type[np.int64 | np.int16],
    positions: NDArray[np.int64],
    damage: DamageLog,
) -> NDArray[Any]:
    """An attribute of each holder as integers, NONE where it is none or does not fit."""
    take = attrgetter(attribute)
    try:
        column = np.fromiter(map(take, holders), np.int64, len(holders))
    except (TypeError, ValueError, OverflowError):
        limits = np.iinfo(np.int64)
    else:
        limits = np.iinfo(np.dtype(dtype))
        if not len(column) or (column.min() >= limits.min and column.max() <= limits.max):
            return column.astype(dtype, copy=False)
    values = zip(map(take, holders), positions.tolist(), strict=True)
    limits = np.iinfo(np.dtype(dtype))
    wholes = (_whole(value, limits, attribute, position, damage) for value, position in values)
    return np.fromiter(wholes, dtype, len(holders))


def _whole(
    value: Any, limits: np.iinfo[Any], attribute: str, position: int, damage: DamageLog
) -> int:
    if value is None:
        return NONE
    try:
        if isinstance(value, str) and len(value) > LONGEST_WHOLE:
            raise ValueError
        whole = int(value)
    except ValueError:
        damage.add("wrong_type", position, f"{attribute}: {value!r}")
        return NONE
    if not limits.min <= whole <= limits.max:
        damage.add("out_of_range", position, f"{attribute}: {value!r:.80}")
        return NONE
    return whole


def time_column(
    attribute: str, holders: Sequence[Any], positions: NDArray[np.int64], damage: DamageLog
) -> NDArray[np.int64]:
    """A time of each holder in nanoseconds, NO_TIME (and counted) where it has none."""
    values = list(map(attrgetter(attribute), holders))
    times = parse_times(values)
    for row in np.flatnonzero(times == NO_TIME).tolist():
        kind = why_no_time(values[row])
        damage.add(kind, int(positions[row]), f"{attribute}: {values[row]!r:.80}")
    return times


class Blocks:
    """A table that grows by blocks of columns."""

    def __init__(self, **dtypes: DTypeLike) -> None:
        self._dtypes = dtypes
        self._blocks: dict[str, list[NDArray[Any]]] = {name: [] for name in dtypes}

    def add(self, **columns: NDArray[Any]) -> None:
        """One block: every column, in equal lengths."""
        for name, blocks in self._blocks.items():
            blocks.append(columns[name].astype(self._dtypes[name], copy=False))

    def columns(self) -> dict[str, NDArray[Any]]:
        """The whole table; it is empty afterwards, as both at once would take twice the memory."""
        whole = {}
        for name, dtype in self._dtypes.items():
            blocks = self._blocks[name]
            whole[name] = np.concatenate(blocks) if blocks else np.empty(0, dtype)
            self._blocks[name] = []
        return whole
