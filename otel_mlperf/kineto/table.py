"""Where does each entry of ``traceEvents`` go?

Events with a duration become rows, ends of arrows and allocations rows of smaller tables, names of
threads and processes are looked up in the end; all else is counted only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.entries import (
    KINDS,
    PHASES,
    Begin,
    Complete,
    End,
    FlowEnd,
    FlowStart,
    Instant,
    Meta,
)
from otel_mlperf.kineto.gather import AllocationRows, EventRows, FlowRows
from otel_mlperf.kineto.halves import Halves
from otel_mlperf.kineto.tracks import Tracks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_mlperf.kineto.damage import DamageLog

_MOST_PHASES: Final = 256
_CODES: Final = {kind: code for code, kind in enumerate(KINDS)}


class Table:
    """Takes entries block by block, in the order of the file."""

    def __init__(self, damage: DamageLog) -> None:
        self.tracks = Tracks(damage)
        self.events = EventRows(self.tracks, damage)
        self.flows = FlowRows(self.tracks, damage)
        self.allocations = AllocationRows(self.tracks, damage)
        self.halves = Halves(damage)
        self._codes = np.zeros(len(KINDS), np.int64)
        self._unknown: dict[str, int] = {}

    def add(self, entries: Sequence[Any], positions: NDArray[np.int64]) -> None:
        """Take the entries that stand at these byte offsets."""
        kinds = np.fromiter(map(_CODES.__getitem__, map(type, entries)), np.uint8, len(entries))
        counts = np.bincount(kinds, minlength=len(KINDS))
        self._codes += counts

        def those(*wanted: type) -> tuple[list[Any], NDArray[np.int64]]:
            rows = _rows(kinds, counts, [_CODES[kind] for kind in wanted])
            return list(map(entries.__getitem__, rows.tolist())), positions[rows]

        self.events.add(*those(Complete))
        self.flows.add(*those(FlowStart, FlowEnd))
        self.allocations.add(*those(Instant))
        self.tracks.name(those(Meta)[0])
        halves, at = those(Begin, End)
        if halves:
            pairs = self.halves.pair(zip(halves, at.tolist(), strict=True))
            self.events.add([e for e, _ in pairs], np.array([p for _, p in pairs], np.int64))

    def add_unknown(self, phase: str) -> None:
        """Count an entry of a phase that the format does not have."""
        known = phase in self._unknown or len(self._unknown) < _MOST_PHASES
        key = phase if known else ""
        self._unknown[key] = self._unknown.get(key, 0) + 1

    def counts(self) -> dict[str, int]:
        """Entries by their phase."""
        known = zip(PHASES.values(), self._codes.tolist(), strict=True)
        return {phase: count for phase, count in known if count} | self._unknown


def _rows(
    kinds: NDArray[np.uint8], counts: NDArray[np.int64], wanted: list[int]
) -> NDArray[np.int64]:
    """Which entries are of one of the wanted kinds."""
    chosen = np.zeros(len(kinds), np.bool_)
    for code in wanted:
        if counts[code]:
            chosen |= kinds == code
    return np.flatnonzero(chosen)
