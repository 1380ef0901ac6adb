"""Timeline of a run: steps, spans and counter values, placed on tracks.

Rows are read in time ranges, so that a run of a million spans never has to fit in memory.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.analysis.timeline.timeline_tracks import Point, Slice, TrackKind
from otel_mlperf.store.table_reader import time_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_mlperf.analysis.steps.step_selection import Selected
    from otel_mlperf.analysis.timeline.timeline_tracks import TimelineTrack, TimelineTracks

_EVENT: Final = "event"
_ROLL_UP: Final = "rollup"
_SHOWN: Final = "kind <> 'event_rollup'"
"""Excludes roll-ups of profiler events, because each event is also a row."""
_TASK: Final = "task "
_UNKNOWN: Final = "unknown thread"
"""Name for unnamed threads, and for the thread of the profiler's own span."""
_TRACE_ID: Final = "trace_id"
_STATUS: Final = "status"
_Row = dict[str, Any]
_Devices = dict[tuple[int, int, str, int], int]
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


def start_of(selected: Selected) -> int:
    """Return the earliest time that a timeline shows, as Unix time; 0 if the timeline is empty."""
    ((first,),) = selected.store.rows(
        f"SELECT min(t) FROM (SELECT min(start_ns) t FROM steps WHERE {selected.wanted} "
        f"UNION ALL SELECT min(start_ns) FROM spans WHERE {selected.wanted} "
        "UNION ALL SELECT min(time_ns) FROM marks WHERE time_ns >= $from "
        "UNION ALL SELECT min(time_ns) FROM readings WHERE time_ns >= $from "
        "UNION ALL SELECT min(time_ns) FROM values WHERE time_ns >= $from)",
        **{**selected.values, "from": selected.start_ns},
    )
    return first or 0


def read_steps(selected: Selected, tracks: TimelineTracks) -> Iterator[Slice]:
    """Yield every step, sampled or not, on the track for the steps of its process."""
    for row in (row for rows, _ in _pieces(selected, "steps") for row in rows):
        track = tracks.find((row["rank"], row["restart"]), TrackKind.STEPS, "steps")
        shown = ("epoch", "duration_ns", "self_ns", "samples", "tokens", "kept", _TRACE_ID)
        arguments = {key: row[key] for key in shown if row[key] is not None}
        arguments |= {"error": True} if row["error"] else {}
        name = f"{row['phase']} {row['number']}"
        end = max(row["start_ns"], row["end_ns"])
        yield Slice(track, row["start_ns"], end, name, row["phase"], arguments)


def read_spans(selected: Selected, tracks: TimelineTracks) -> Iterator[Slice]:
    """Yield every sampled span by start; of equal starts, longer spans and parents first."""
    devices = _devices(selected)
    for rows, range_ in _pieces(selected, "spans"):
        # Read in time ranges like the spans: the pairs of a whole run may not fit in memory.
        causes: dict[str, list[int]] = {}
        for cause, effect in selected.store.rows(_effects_sql(selected, "cause"), **range_):
            causes.setdefault(cause, []).append(int(effect, 16))
        effects = {
            effect for _, effect in selected.store.rows(_effects_sql(selected, "effect"), **range_)
        }
        for row in _parents_first(rows):
            arguments = json.loads(row["attributes"] or "{}")
            yield Slice(
                _track(row, arguments, devices, tracks),
                row["start_ns"],
                max(row["start_ns"], row["end_ns"]),
                _name(row, arguments),
                row["category"],
                arguments | _own_arguments(row),
                int(row["span_id"], 16),
                int(row["parent_id"] or "0", 16),
                tuple(causes.get(row["span_id"], ())),
                row["span_id"] in effects,
            )


def _pieces(selected: Selected, table: str) -> Iterator[tuple[list[_Row], dict[str, Any]]]:
    wanted, values, order = selected.wanted, selected.values, "start_ns, end_ns DESC, "
    if table == "spans":
        wanted, order = f"{wanted} AND {_SHOWN}", f"{order} span_id"
    else:
        order = f"{order} n"
    for low, high in time_ranges(selected.store, table, "start_ns", wanted, values):
        range_ = {**values, "low": low, "high": high}
        sql = f"SELECT * FROM {table} WHERE {wanted} AND {_between(table)} ORDER BY {order}"
        yield selected.store.records(sql, **range_), range_


def _devices(selected: Selected) -> _Devices:
    """Map each stream to its device, because some rows of a stream do not contain the device."""
    index = f"""regexp_extract(attributes, '"{names.DEVICE_INDEX}": ([0-9]+)', 1)"""
    rows = selected.store.rows(
        f"SELECT rank, restart, thread, track, max(try_cast({index} AS INTEGER)) FROM spans "
        f"WHERE kind = '{_EVENT}' AND category = '{names.KERNEL}' GROUP BY ALL"
    )
    return {tuple(key): device for *key, device in rows if device is not None}


def _effects_sql(selected: Selected, which: str) -> str:
    """Return SQL of pairs of a cause and an effect on another track.

    The span selected by ``which`` (``cause`` or ``effect``) starts in the time range ``$low`` to
    ``$high``. A cause is the enclosing section of a section, or the operator that launched device
    work. Other events are excluded, because an enclosing event can have thousands of children.
    """
    return (
        f"WITH chosen AS (SELECT * FROM spans WHERE {selected.wanted}) "
        "SELECT cause.span_id, effect.span_id FROM chosen cause JOIN chosen effect "
        "ON effect.parent_id = cause.span_id AND effect.rank = cause.rank "
        "AND effect.restart = cause.restart AND effect.kind = cause.kind "
        f"AND (effect.kind <> '{_EVENT}' OR effect.category = '{names.KERNEL}') "
        "AND (effect.track <> cause.track OR effect.thread <> cause.thread) "
        f"WHERE {_between(which)} ORDER BY effect.start_ns"
    )


def _between(table: str) -> str:
    return f"{table}.start_ns >= $low AND {table}.start_ns < $high"


def _parents_first(rows: Iterable[_Row]) -> Iterator[_Row]:
    for _, group in groupby(rows, lambda row: (row["start_ns"], row["end_ns"])):
        same = {row["span_id"]: row for row in group}
        while same:
            span = next(iter(same))
            above = [span]
            while (span := same[span]["parent_id"]) in same and span not in above:
                above.append(span)
            for span in reversed(above):
                yield same.pop(span)


def _track(
    row: _Row, attributes: dict[str, Any], devices: _Devices, tracks: TimelineTracks
) -> TimelineTrack:
    """Return the track of a span: the stream of a device, or the thread or task of a host.

    Threads are identified by native id, because the recorder and profilers number them differently.
    """
    process, name, native = (row["rank"], row["restart"]), row["thread"].strip(), row["thread_id"]
    if row["category"] == names.KERNEL and native is None:
        known = devices.get((*process, row["thread"], row["track"]))
        device = attributes.get(names.DEVICE_INDEX, known)
        is_complete = device is None or name.lower().startswith("device")
        return tracks.find(
            process, TrackKind.DEVICE, name if is_complete else f"device {device} · {name}"
        )
    if row["kind"] == _EVENT and native is None:
        return tracks.find(process, TrackKind.UNKNOWN, name or _UNKNOWN)
    # Tasks of one thread overlap: therefore each has its own track, like a thread.
    is_task = native is None or name.startswith(_TASK)
    key = ("track", row["track"]) if is_task else ("thread", native)
    shown = name or f"thread {row['track']}"
    is_roll_up = row["kind"] == _ROLL_UP
    return tracks.find(process, TrackKind.THREAD, shown, key, rolls_up=is_roll_up)


def _name(row: _Row, attributes: dict[str, Any]) -> str:
    count = attributes.get(names.ROLLED_UP) if row["kind"] == _ROLL_UP else None
    return str(row["name"]) if count is None else f"{row['name']} ×{count}"


def _own_arguments(row: _Row) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if row["span_id"] == row["root_id"]:
        own[_TRACE_ID] = row["trace_id"]
    if row["status"] == "error":
        own[_STATUS] = row["status"]
    return own


def read_points(selected: Selected, tracks: TimelineTracks) -> Iterator[Point]:
    """Yield the points of each counter track in time order.

    The value of a monotonic counter is its growth per second from each reading to the next.
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
            track = known.get(labelled := tuple(key)) or _counter_track(tracks, labelled)
            known[labelled] = track
            if not _grows(labelled):
                yield Point(track, time_ns, value)
                continue
            then, was = before.get(track, (time_ns, value))
            before[track] = time_ns, value
            if time_ns > then and value >= was:  # a smaller value: the process was restarted
                yield Point(track, then, (value - was) / (time_ns - then) * 1e9)


def _grows(key: _Labelled) -> bool:
    _, _, name, _, unit = key
    return unit is None and name in _METRICS and _METRICS[name].instrument == "counter"


def _counter_track(tracks: TimelineTracks, key: _Labelled) -> TimelineTrack:
    rank, restart, name, labels, unit = key
    if unit is None:
        unit = _METRICS[name].unit if name in _METRICS else ""
        labels = ", ".join(map(str, json.loads(labels or "{}").values()))
    if _grows(key):
        name, unit = f"{name} per second", f"{unit}/s"
    shown = f"{name} ({labels})" if labels else name
    return tracks.find((rank, restart), TrackKind.COUNTER, shown, unit=unit)
