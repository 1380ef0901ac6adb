"""Where does each entry of ``traceEvents`` go?

Events with a duration become rows, ends of arrows and allocations rows of smaller tables, names of
threads and processes are looked up in the end; all else is counted only.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.reading.entries import (
    KINDS,
    PHASES,
    Begin,
    BeginEndPairs,
    Complete,
    End,
    FlowEnd,
    FlowStart,
    Instant,
    Meta,
)
from otel_mlperf.kineto.reading.gather import AllocationRows, EventRows, FlowRows
from otel_mlperf.kineto.reading.record_numbers import RecordNumbers
from otel_mlperf.kineto.reading.value_columns import TrackTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_mlperf.kineto.reading.damage import DamageLog

_MOST_PHASES: Final = 256
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}


class Table:
    """Takes entries block by block, in the order of the file."""

    def __init__(self, damage: DamageLog) -> None:
        self.tracks = TrackTable(damage)
        self.numbers = RecordNumbers()
        self.events = EventRows(self.tracks, self.numbers, damage)
        self.flows = FlowRows(self.tracks, damage)
        self.allocations = AllocationRows(self.tracks, self.numbers, damage)
        self.halves = BeginEndPairs(damage)
        self._codes = np.zeros(len(KINDS), np.int64)
        self._unknown: dict[str, int] = {}

    def add(self, entries: Sequence[Any], positions: NDArray[np.int64]) -> None:
        """Take the entries that stand at these byte offsets."""
        # A column of kinds: entries are told apart by a look for each kind, not for each entry.
        kinds = np.fromiter(map(_CODES.__getitem__, map(type, entries)), np.uint8, len(entries))
        counts = np.bincount(kinds, minlength=len(KINDS))
        self._codes += counts

        def those(*wanted: type) -> tuple[list[Any], NDArray[np.int64]] | None:
            codes = [_CODES[kind] for kind in wanted if counts[_CODES[kind]]]
            if not codes:
                return None
            rows = np.flatnonzero(reduce(np.logical_or, [kinds == code for code in codes]))
            return list(map(entries.__getitem__, rows.tolist())), positions[rows]

        if events := those(Complete):
            self.events.add(*events)
        if flows := those(FlowStart, FlowEnd):
            self.flows.add(*flows)
        if instants := those(Instant):
            self.allocations.add(*instants)
        if names := those(Meta):
            self.tracks.name(names[0])
        if halves := those(Begin, End):
            self._add_halves(*halves)

    def _add_halves(self, halves: list[Any], positions: NDArray[np.int64]) -> None:
        # A pair stands where its begin does, before rows that are there already: ``finish`` sorts.
        pairs = self.halves.pair(zip(halves, positions.tolist(), strict=True))
        if pairs:
            events, places = zip(*pairs, strict=True)
            self.events.add(list(events), np.array(places, np.int64))

    def add_unknown(self, phase: str) -> None:
        """Count an entry of a phase that the format does not have."""
        known = phase in self._unknown or len(self._unknown) < _MOST_PHASES
        key = phase if known else ""
        self._unknown[key] = self._unknown.get(key, 0) + 1

    def counts(self) -> dict[str, int]:
        """Entries by their phase."""
        known = zip(PHASES.values(), self._codes.tolist(), strict=True)
        return {phase: count for phase, count in known if count} | self._unknown
