"""Marks of a run as instants of its timeline, each on a track of the rank that made the mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.analysis.timeline.timeline_tracks import Instant, TrackKind
from otel_mlperf.store.table_reader import time_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.analysis.steps.step_selection import Selected
    from otel_mlperf.analysis.timeline.timeline_tracks import TimelineTracks

_CATEGORY: Final = "mark"
_SHOWN: Final = "time_ns BETWEEN $from AND $until"


def read_marks(selected: Selected, tracks: TimelineTracks) -> Iterator[Instant]:
    """Yield every call of ``run.mark()`` in time order, on a track of its rank."""
    wanted: dict[str, object] = {"from": selected.start_ns, "until": selected.end_ns}
    for low, high in time_ranges(selected.store, "marks", "time_ns", _SHOWN, wanted):
        for row in selected.store.records(
            f"SELECT * FROM marks WHERE {_SHOWN} AND time_ns >= $low AND time_ns < $high "
            "ORDER BY time_ns, rank, name",
            low=low,
            high=high,
            **wanted,
        ):
            track = tracks.find((row["rank"], row["restart"]), TrackKind.MARKS, "marks")
            arguments = {"phase": row["phase"], "step": row["number"]}
            yield Instant(track, row["time_ns"], row["name"], _CATEGORY, arguments)
