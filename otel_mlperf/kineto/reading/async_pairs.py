"""Pairs of asynchronous starts and ends (``b`` and ``e``, in older files ``S`` and ``F``).

Asynchronous events are not nested on a thread. A start and an end are a pair if category, scope and
id are equal; pairs with different ids may overlap. Events that are open under one id at the same
time are nested and form a group. Each group gets a row of the timeline that no other group uses at
the same time, so that its events are not inside events of another group.
"""

from __future__ import annotations

from heapq import heappush, heapreplace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from otel_mlperf.kineto.reading.entries import AsyncBegin, AsyncEnd, Complete, join_halves
from otel_mlperf.kineto.reading.times import NO_TIME, parse_times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mlperf.kineto.reading.damage import DamageLog

_MAX_ROWS: Final = 1 << 12
"""Maximum number of rows of one process and category; if more groups overlap, they share rows."""
_MAX_SEARCHED: Final = 64
"""Maximum number of open starts of one id that are searched for the start that fits an end."""
_Pair = tuple[Complete, int]


class _Group(msgspec.Struct, gc=False):
    """Open events of one id, and the events of that id that ended while another one was open."""

    open: list[tuple[AsyncBegin, int]]
    ended: list[_Pair]


class AsyncPairs:
    """Pairing of asynchronous starts and ends; events with different ids may end in any order."""

    def __init__(self, damage: DamageLog) -> None:
        self._damage = damage
        self._groups: dict[tuple[Any, ...], _Group] = {}
        self._early: dict[tuple[Any, ...], list[tuple[AsyncEnd, int]]] = {}
        """Ends without an open start, because the start may follow later in the file."""
        self._rows: dict[tuple[Any, str], list[tuple[int, int]]] = {}
        """Heap of (time of last use, number) of the rows of each process and category."""

    def pair(self, halves: Iterable[tuple[AsyncBegin | AsyncEnd, int]]) -> list[_Pair]:
        """Return the events of groups that are now complete, with their starts' byte offsets."""
        pairs: list[_Pair] = []
        for half, position in halves:
            key = (half.cat, half.scope, *_identity(half))
            if isinstance(half, AsyncBegin):
                if end := self._take_early(key, half):
                    pairs += self._placed([(join_halves(half, end), position)])
                else:
                    self._groups.setdefault(key, _Group([], [])).open.append((half, position))
            elif key not in self._groups:
                self._early.setdefault(key, []).append((half, position))
            else:
                group = self._groups[key]
                begin, begin_position = group.open.pop(_match(group.open, half))
                group.ended.append((join_halves(begin, half), begin_position))
                if not group.open:
                    pairs += self._placed(self._groups.pop(key).ended)
        return pairs

    def _take_early(self, key: tuple[Any, ...], begin: AsyncBegin) -> AsyncEnd | None:
        if not (early := self._early.get(key)):
            return None
        ends = [end for end, _ in early[:_MAX_SEARCHED]]
        begin_ns, *times = parse_times(
            lambda: (half.ts for half in (begin, *ends)), 1 + len(ends)
        ).tolist()
        fits = [
            (time, at)
            for at, time in enumerate(times)
            if NO_TIME != begin_ns <= time and ends[at].name in ("", begin.name)
        ]
        return early.pop(min(fits)[1])[0] if fits else None

    def close(self) -> list[_Pair]:
        """Return the ended events of open groups; log unmatched starts and ends as damage."""
        pairs: list[_Pair] = []
        for early in self._early.values():
            for end, position in early:
                self._damage.add("unmatched_end", position, end.name)
        for group in self._groups.values():
            for begin, position in group.open:
                self._damage.add("unmatched_begin", position, begin.name)
            pairs += self._placed(group.ended)
        self._groups, self._early = {}, {}
        return pairs

    def _placed(self, ended: list[_Pair]) -> list[_Pair]:
        if not ended:
            return []
        first = ended[-1][0]  # The outermost event ends last.
        starts = parse_times(lambda: (event.ts for event, _ in ended), len(ended))
        lengths = parse_times(lambda: (event.dur for event, _ in ended), len(ended))
        known = (starts != NO_TIME) & (lengths != NO_TIME)
        begin = int(starts[known].min(initial=0)) if known.any() else 0
        end = int((starts[known] + lengths[known]).max()) if known.any() else 0
        tid = f"async {first.cat} {self._row((first.pid, first.cat), begin, end)}".replace(
            "  ", " "
        )
        for event, _ in ended:
            event.tid = tid
        return ended

    def _row(self, of: tuple[Any, str], begin_ns: int, end_ns: int) -> int:
        rows = self._rows.setdefault(of, [])
        if rows and (rows[0][0] <= begin_ns or len(rows) >= _MAX_ROWS):
            number = rows[0][1]
            heapreplace(rows, (end_ns, number))
            return number
        heappush(rows, (end_ns, len(rows) + 1))
        return len(rows)


def _identity(half: AsyncBegin | AsyncEnd) -> tuple[Any, ...]:
    if half.id2 is not None:
        world = half.id2.get("global")
        return (str(half.id2.get("local")), str(half.pid)) if world is None else (str(world),)
    return str(half.id), str(half.pid)


def _match(begins: list[tuple[AsyncBegin, int]], end: AsyncEnd) -> int:
    """Return the index of the last start with the name of ``end``, or else of the last start."""
    for at in range(len(begins) - 1, max(-1, len(begins) - 1 - _MAX_SEARCHED), -1):
        if not end.name or begins[at][0].name == end.name:
            return at
    return len(begins) - 1
