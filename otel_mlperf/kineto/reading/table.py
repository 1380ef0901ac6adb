"""Table that dispatches each entry of ``traceEvents`` to its rows.

Events with a duration become rows; ends of arrows and allocations become rows of smaller tables;
names of threads and processes are looked up at the end. Everything else is only counted.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.reading.async_pairs import AsyncPairs
from otel_mlperf.kineto.reading.entries import (
    KINDS,
    PHASES,
    AsyncBegin,
    AsyncEnd,
    Begin,
    BeginEndPairs,
    Complete,
    End,
    FlowEnd,
    FlowStart,
    Instant,
    Meta,
    OldAsyncBegin,
    OldAsyncEnd,
)
from otel_mlperf.kineto.reading.gather import AllocationRows, EventRows, FlowRows
from otel_mlperf.kineto.reading.record_numbers import RecordNumbers
from otel_mlperf.kineto.reading.value_columns import TrackTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_mlperf.kineto.reading.damage import DamageLog

_MOST_PHASES: Final = 256
_ASYNC: Final = (AsyncBegin, AsyncEnd, OldAsyncBegin, OldAsyncEnd)
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}


class Table:
    """Table of the rows of a trace, filled block by block, in the order of the file."""

    def __init__(self, damage: DamageLog) -> None:
        self.tracks = TrackTable(damage)
        self.numbers = RecordNumbers()
        self.events = EventRows(self.tracks, self.numbers, damage)
        self.flows = FlowRows(self.tracks, damage)
        self.allocations = AllocationRows(self.tracks, self.numbers, damage)
        self._halves = BeginEndPairs(damage)
        self._async = AsyncPairs(damage)
        self._takers = (
            ((Complete,), self.events.add),
            ((FlowStart, FlowEnd), self.flows.add),
            ((Instant,), self.allocations.add),
            ((Meta,), lambda names, _: self.tracks.name(names)),
            ((Begin, End), partial(self._add_halves, self._halves)),
            (_ASYNC, partial(self._add_halves, self._async)),
        )
        self._codes = np.zeros(len(KINDS), np.int64)
        self._unknown: dict[str, int] = {}

    def add(self, entries: Sequence[Any], positions: NDArray[np.int64]) -> None:
        """Add the entries at these byte offsets."""
        # A column of kinds: entries are separated by one check for each kind, not for each entry.
        kinds = np.fromiter(map(_CODES.__getitem__, map(type, entries)), np.uint8, len(entries))
        counts = np.bincount(kinds, minlength=len(KINDS))
        self._codes += counts

        def those(*wanted: type) -> tuple[list[Any], NDArray[np.int64]] | None:
            codes = [_CODES[kind] for kind in wanted if counts[_CODES[kind]]]
            if not codes:
                return None
            rows = np.flatnonzero(reduce(np.logical_or, [kinds == code for code in codes]))
            return list(map(entries.__getitem__, rows.tolist())), positions[rows]

        for kinds_taken, take in self._takers:
            if taken := those(*kinds_taken):
                take(*taken)

    def close(self) -> None:
        """Add complete pairs, and count halves without the other one."""
        self._halves.close()
        self._add_pairs(self._async.close())

    def _add_halves(
        self, pairs: BeginEndPairs | AsyncPairs, halves: list[Any], positions: NDArray[np.int64]
    ) -> None:
        self._add_pairs(pairs.pair(zip(halves, positions.tolist(), strict=True)))

    def _add_pairs(self, pairs: list[tuple[Complete, int]]) -> None:
        # A pair has the position of its start, before rows that exist already: ``finish`` sorts.
        if pairs:
            events, places = zip(*pairs, strict=True)
            self.events.add(list(events), np.array(places, np.int64))

    def add_unknown(self, phase: str) -> None:
        """Count an entry of a phase that the format does not define."""
        known = phase in self._unknown or len(self._unknown) < _MOST_PHASES
        key = phase if known else ""
        self._unknown[key] = self._unknown.get(key, 0) + 1

    def counts(self) -> dict[str, int]:
        """Return the number of entries by phase."""
        known = zip(PHASES.values(), self._codes.tolist(), strict=True)
        return {phase: count for phase, count in known if count} | self._unknown
