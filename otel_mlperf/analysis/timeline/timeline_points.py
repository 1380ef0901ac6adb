"""Which values of a run changed over time: readings, logged values, steps' times, memory?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.timeline.timeline_tracks import Point, TrackKind
from otel_mlperf.store.table_reader import time_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.analysis.steps.step_selection import Selected
    from otel_mlperf.analysis.timeline.timeline_tracks import TimelineTrack, TimelineTracks

_METRICS: Final = {metric.name: metric for metric in names.METRICS}
_BYTES: Final = "By"
_MILLISECONDS: Final = "ms"
_ALLOCATOR: Final = (
    "SELECT rank, restart, '{what} memory' AS name, "
    "if(device_type = 0, 'CPU', 'device ' || device) AS labels, time_ns, {what}_bytes::DOUBLE, "
    f"'{_BYTES}' AS unit FROM allocator WHERE {{what}}_bytes IS NOT NULL"
)
_POINTS: Final = (
    "(SELECT rank, restart, name, labels, time_ns, value, NULL AS unit FROM readings "
    "UNION ALL SELECT rank, restart, name, phase, time_ns, value, '' FROM values "
    "UNION ALL SELECT rank, restart, 'step duration', phase, start_ns, duration_ns / 1e6, "
    f"'{_MILLISECONDS}' FROM steps "
    f"UNION ALL {_ALLOCATOR.format(what='allocated')} "
    f"UNION ALL {_ALLOCATOR.format(what='reserved')})"
)
_Labelled = tuple[int | None, int, str, str, str | None]


def read_points(selected: Selected, tracks: TimelineTracks) -> Iterator[Point]:
    """The points of each track in the order of time.

    What only ever grows is shown as its growth per second from each reading to the next:
    (next - this) / (their distance in seconds).
    """
    store = selected.store
    known: dict[_Labelled, TimelineTrack] = {}
    before: dict[TimelineTrack, tuple[int, float]] = {}
    wanted: dict[str, object] = {"from": selected.start_ns, "until": selected.end_ns}
    where = "time_ns BETWEEN $from AND $until"
    for low, high in time_ranges(store, _POINTS, "time_ns", where, wanted):
        rows = store.rows(
            f"SELECT rank, restart, name, labels, unit, time_ns, value FROM {_POINTS} "
            f"WHERE {where} AND time_ns >= $low AND time_ns < $high ORDER BY time_ns, name, labels",
            low=low,
            high=high,
            **wanted,
        )
        for *key, time_ns, value in rows:
            track = known.get(labelled := tuple(key)) or _track(tracks, labelled)
            known[labelled] = track
            if not _grows(labelled):
                yield Point(track, time_ns, value)
                continue
            then, was = before.get(track, (time_ns, value))
            before[track] = time_ns, value
            if time_ns > then and value >= was:  # else the process began anew
                yield Point(track, then, (value - was) / (time_ns - then) * 1e9)


def _grows(key: _Labelled) -> bool:
    _, _, name, _, unit = key
    return unit is None and name in _METRICS and _METRICS[name].instrument == "counter"


def _track(tracks: TimelineTracks, key: _Labelled) -> TimelineTrack:
    rank, restart, name, labels, unit = key
    if unit is None:
        unit = _METRICS[name].unit if name in _METRICS else ""
        labels = ", ".join(map(str, json.loads(labels or "{}").values()))
    if _grows(key):
        name, unit = f"{name} per second", f"{unit}/s"
    shown = f"{name} ({labels})" if labels else name
    return tracks.find((rank, restart), TrackKind.COUNTER, shown, unit=unit)
