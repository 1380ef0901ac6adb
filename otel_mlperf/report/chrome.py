"""Chrome trace format of a run's timeline, for chrome://tracing and Perfetto.

The format is JSON. Times are in microseconds relative to ``baseTimeNanoseconds``, because viewers
read them as double precision numbers, in which Unix times would lose their nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from otel_mlperf.analysis.timeline.timeline_tracks import TrackKind
from otel_mlperf.otlp import wire
from otel_mlperf.report.timeline_files import line_name, line_place
from otel_mlperf.terminal_lines import uncontrolled

if TYPE_CHECKING:
    from otel_mlperf.analysis.timeline.timeline_tracks import (
        Instant,
        Point,
        Slice,
        TimelineProcess,
        TimelineTrack,
    )


class ChromeFormat:
    """Encoder of a timeline in the Chrome trace format: a JSON object with one event per line."""

    def __init__(self) -> None:
        self._base_ns = 0
        self._encoder = msgspec.json.Encoder()
        self._tracks: dict[int, TimelineTrack] = {}
        self._processes: set[TimelineProcess] = set()
        self._comma = b""

    def begin(self, start_ns: int) -> bytes:
        """Return the file's start up to the list of events; ``start_ns`` is the base time."""
        self._base_ns = start_ns
        return b'{"displayTimeUnit":"ns","baseTimeNanoseconds":%d,"traceEvents":[\n' % start_ns

    def line(self, number: int, track: TimelineTrack, lane: int) -> bytes:
        """Return metadata events with the name and position of a new line.

        If the line's process is new as well, the process's name and position come first. A
        counter's line has no events of its own, because each event of a counter contains its name.
        """
        self._tracks[number] = track
        process = track.process
        events = b""
        if process not in self._processes:
            self._processes.add(process)
            events += self._metadata(process.pid, 0, "process_name", {"name": process.name})
            events += self._metadata(
                process.pid, 0, "process_sort_index", {"sort_index": process.pid}
            )
        if track.kind == TrackKind.COUNTER:
            return events
        events += self._metadata(
            process.pid, number, "thread_name", {"name": line_name(track, lane)}
        )
        place = line_place(track, lane)
        return events + self._metadata(
            process.pid, number, "thread_sort_index", {"sort_index": place}
        )

    def slice(self, line: int, piece: Slice) -> bytes:
        """Return a complete event (``ph: X``); a flow arrow's id is the span id of its source."""
        event = {
            "ph": "X",
            "pid": piece.track.process.pid,
            "tid": line,
            "ts": self._time(piece.start_ns),
            "dur": self._microseconds(piece.end_ns - piece.start_ns),
            "name": piece.name,
            "cat": piece.category,
            "args": piece.arguments,
        }
        if piece.leads_to:  # an event has only one binding: a cause takes precedence over an effect
            event |= {"bind_id": hex(piece.span), "flow_out": True}
        elif piece.is_led:
            event |= {"bind_id": hex(piece.parent), "flow_in": True}
        return self._event(event)

    def ended(self, line: int, end_ns: int) -> bytes:
        """Return empty bytes, because the complete event of a slice includes its duration."""
        return b""

    def instant(self, line: int, instant: Instant) -> bytes:
        """Return an instant event (``ph: i``), which viewers draw on its line only."""
        event = {
            "ph": "i",
            "s": "t",
            "pid": instant.track.process.pid,
            "tid": line,
            "ts": self._time(instant.time_ns),
            "name": instant.name,
            "cat": instant.category,
            "args": instant.arguments,
        }
        return self._event(event)

    def point(self, line: int, point: Point) -> bytes:
        """Return a counter event (``ph: C``); viewers find its counter by process and name."""
        track = point.track
        unit = track.unit or "value"
        event = {"ph": "C", "pid": track.process.pid, "tid": line, "name": track.name}
        return self._event(event | {"ts": self._time(point.time_ns), "args": {unit: point.value}})

    def end(self) -> bytes:
        """Return the closing brackets of the list of events and of the file."""
        return b"\n]}\n"

    def _metadata(self, pid: int, tid: int, name: str, arguments: dict[str, Any]) -> bytes:
        event = {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": arguments}
        return self._event(event)

    def _event(self, event: dict[str, Any]) -> bytes:
        try:
            encoded = self._encoder.encode(event)
        except UnicodeEncodeError:
            # Done only after a failure: checking beforehand would cost time for every event.
            encoded = self._encoder.encode(_clean(event))
        if not encoded.isascii() or b"\x7f" in encoded:
            encoded = uncontrolled(encoded.decode()).encode()
        written = self._comma + encoded
        self._comma = b",\n"
        return written

    def _time(self, at_ns: int) -> msgspec.Raw:
        return self._microseconds(at_ns - self._base_ns)

    def _microseconds(self, ns: int) -> msgspec.Raw:
        # Integer arithmetic: a float would round digits that the viewer can still show.
        whole, rest = divmod(abs(ns), 1000)
        return msgspec.Raw(b"%s%d.%03d" % (b"-" if ns < 0 else b"", whole, rest))


def _clean(value: Any) -> Any:
    """Replace lone surrogates, which UTF-8 cannot represent, in all strings of a JSON value."""
    if isinstance(value, str):
        return wire.utf8(value).decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value
