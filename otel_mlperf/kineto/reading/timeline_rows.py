"""On which row of the timeline does an entry stand, and what is that row called?"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.reading.value_columns import Index
from otel_mlperf.kineto.trace_events import TraceTrack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_mlperf.kineto.reading.damage import DamageLog
    from otel_mlperf.kineto.reading.entries import Meta

_PLACE: Final = attrgetter("pid", "tid")


class TrackTable:
    """Numbers the tracks that entries stand on."""

    def __init__(self, damage: DamageLog) -> None:
        self._damage = damage
        self._index = Index(_texts)
        self._threads: dict[tuple[str | None, str | None], str] = {}
        self._processes: dict[str | None, str] = {}

    def column(self, entries: Sequence[Any], positions: NDArray[np.int64]) -> NDArray[np.int32]:
        """The track of each entry; one that does not say stands on a track without a number."""
        tracks: NDArray[np.int32] = self._index.column(map(_PLACE, entries), len(entries), np.int32)
        nameless = [number for place, number in self._index.items() if None in place]
        if nameless:
            for row in np.flatnonzero(np.isin(tracks, nameless)).tolist():
                self._damage.add("missing_field", int(positions[row]), "pid or tid")
        return tracks

    def name(self, entries: Sequence[Meta]) -> None:
        """Take the names that metadata gives to processes and threads."""
        for entry in entries:
            pid, tid = _texts((entry.pid, entry.tid))
            name = (entry.args or {}).get("name")
            if not isinstance(name, str):
                continue
            if entry.name == "process_name":
                self._processes[pid] = name
            elif entry.name == "thread_name":
                self._threads[pid, tid] = name

    def all(self) -> list[TraceTrack]:
        """What the numbers stand for."""
        return [
            TraceTrack(
                pid or "",
                tid or "",
                self._processes.get(pid, ""),
                self._threads.get((pid, tid), ""),
            )
            for pid, tid in self._index.things()
        ]


def _texts(place: tuple[Any, Any]) -> tuple[str | None, str | None]:
    """Numbers as decimal text, so that 7 and "7" are the same track."""
    pid, tid = place
    return None if pid is None else str(pid), None if tid is None else str(tid)
