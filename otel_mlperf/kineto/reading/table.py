"""Table that passes each entry of ``traceEvents`` to the builder of its rows.

Events with a duration become rows; ends of arrows and allocations become rows of smaller tables.
Names of threads and processes are added to the tracks at the end. Other entries are only counted.
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

_MAX_PHASES: Final = 256
_ASYNC: Final = (AsyncBegin, AsyncEnd, OldAsyncBegin, OldAsyncEnd)
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}


class Table:
    """Rows of a trace, filled block by block in the order of the file."""

    def __init__(self, damage: DamageLog) -> None:
        self.tracks = TrackTable(damage)
        self.numbers = RecordNumbers()
        self.events = EventRows(self.tracks, self.numbers, damage)
        self.flows = FlowRows(self.tracks, damage)
        self.allocations = AllocationRows(self.tracks, self.numbers, damage)
        self._halves = BeginEndPairs(damage)
        self._async = AsyncPairs(damage)
        self._builders = (
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
        """Add entries of any kind; ``positions`` are their byte offsets."""
        # Entries are separated by one numpy operation for each kind, not by a check of each entry.
        kinds = np.fromiter(map(_CODES.__getitem__, map(type, entries)), np.uint8, len(entries))
        counts = np.bincount(kinds, minlength=len(KINDS))
        self._codes += counts

        def entries_of(*wanted: type) -> tuple[list[Any], NDArray[np.int64]] | None:
            codes = [_CODES[kind] for kind in wanted if counts[_CODES[kind]]]
            if not codes:
                return None
            rows = np.flatnonzero(reduce(np.logical_or, [kinds == code for code in codes]))
            return list(map(entries.__getitem__, rows.tolist())), positions[rows]

        for kinds_taken, take in self._builders:
            if taken := entries_of(*kinds_taken):
                take(*taken)

    def close(self) -> None:
        """Add the remaining asynchronous events, and log unmatched starts and ends as damage."""
        self._halves.close()
        self._add_pairs(self._async.close())

    def _add_halves(
        self, pairs: BeginEndPairs | AsyncPairs, halves: list[Any], positions: NDArray[np.int64]
    ) -> None:
        self._add_pairs(pairs.pair(zip(halves, positions.tolist(), strict=True)))

    def _add_pairs(self, pairs: list[tuple[Complete, int]]) -> None:
        # A pair has the position of its start, which may precede existing rows: ``finish`` sorts.
        if pairs:
            events, places = zip(*pairs, strict=True)
            self.events.add(list(events), np.array(places, np.int64))

    def add_unknown(self, phase: str) -> None:
        """Count an entry of a phase that the format does not define."""
        known = phase in self._unknown or len(self._unknown) < _MAX_PHASES
        key = phase if known else ""
        self._unknown[key] = self._unknown.get(key, 0) + 1

    def counts(self) -> dict[str, int]:
        """Return the number of entries by phase."""
        known = zip(PHASES.values(), self._codes.tolist(), strict=True)
        return {phase: count for phase, count in known if count} | self._unknown
