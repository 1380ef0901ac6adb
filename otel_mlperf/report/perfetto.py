"""Perfetto trace format of a run's timeline, the native format of ui.perfetto.dev.

The format is a stream of ``TracePacket`` messages: track descriptors, and events on tracks. Each
process is written as a plain track that shows its steps and is the parent of its other tracks.
Perfetto's own process type is not used, because with plain tracks the viewer initially shows the
whole run and keeps the order of tracks. Names are *interned*: written once, then referenced by a
number.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

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

_PROCESS_UUID: Final = 1 << 48
"""First track uuid of processes, far above those of all other lines, which start at 1."""
_MAX_NAMES: Final = 100_000
"""Maximum number of interned names, since readers keep all of them in memory."""
_EXPLICIT: Final = 3
_BYTES: Final = 3
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_CLEARED, _NEEDED = 1, 2
_EVENT_CATEGORIES, _EVENT_NAMES, _ANNOTATION_NAMES = 1, 2, 3
_INT64: Final = range(-(1 << 63), 1 << 63)


class PerfettoFormat:
    """Encoder of a timeline in the Perfetto trace format, as one sequence of packets."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, str], int] = {}
        self._new: list[bytes] = []
        self._processes: dict[TimelineProcess, int] = {}
        self._uuids: dict[int, int] = {}

    def begin(self, start_ns: int) -> bytes:
        """Return a packet that clears interned names; ``start_ns`` is unused."""
        return _packet(b"", _CLEARED)

    def line(self, number: int, track: TimelineTrack, lane: int) -> bytes:
        """Return the descriptors of a new line, and of the line's process if the process is new."""
        process, packets = track.process, b""
        if process not in self._processes:
            self._processes[process] = _PROCESS_UUID + len(self._processes)
            packets = self._process(process)
        # Steps are on the process track itself, so that they are visible when it is collapsed.
        if track.kind == TrackKind.STEPS and not lane:
            self._uuids[number] = self._processes[process]
            return packets
        descriptor = wire.number(1, number) + wire.text(2, uncontrolled(line_name(track, lane)))
        descriptor += wire.number(5, self._processes[process])
        descriptor += wire.number(12, line_place(track, lane))
        if track.kind == TrackKind.COUNTER:
            is_bytes = track.unit == "By"
            unit = wire.number(3, _BYTES) if is_bytes else wire.text(6, track.unit)
            descriptor += wire.block(8, unit)
        return packets + _packet(wire.block(60, descriptor))

    def slice(self, line: int, piece: Slice) -> bytes:
        """Return the start of a slice; the id of a flow arrow is the span id of its target."""
        event = wire.number(9, _BEGIN) + self._on(line) + self._about(piece)
        for effect in (*piece.leads_to, *((piece.span,) if piece.is_led else ())):
            event += wire.fixed64(47, effect)
        return self._event(piece.start_ns, event)

    def ended(self, line: int, end_ns: int) -> bytes:
        """Return the end of the innermost open slice on a line."""
        return self._event(end_ns, wire.number(9, _END) + self._on(line))

    def instant(self, line: int, instant: Instant) -> bytes:
        """Return an instant event on a line."""
        event = wire.number(9, _INSTANT) + self._on(line) + self._about(instant)
        return self._event(instant.time_ns, event)

    def point(self, line: int, point: Point) -> bytes:
        """Return a counter's new value as an event."""
        event = wire.number(9, _COUNTER) + self._on(line) + wire.double(44, point.value)
        return self._event(point.time_ns, event)

    def end(self) -> bytes:
        """Return empty bytes, because the format has no trailer."""
        return b""

    def _process(self, process: TimelineProcess) -> bytes:
        descriptor = wire.number(1, self._processes[process]) + wire.text(
            2, uncontrolled(process.name)
        )
        return _packet(wire.block(60, descriptor + wire.number(11, _EXPLICIT)))

    def _about(self, piece: Slice | Instant) -> bytes:
        event = self._named(_EVENT_NAMES, 10, 23, piece.name)
        event += self._named(_EVENT_CATEGORIES, 3, 22, piece.category)
        for key, value in piece.arguments.items():
            event += wire.block(4, self._annotation(key, value))
        return event

    def _on(self, line: int) -> bytes:
        return wire.number(11, self._uuids.get(line, line))

    def _event(self, time_ns: int, event: bytes) -> bytes:
        # A name is defined in the packet of its first use; later packets contain only its number.
        interned = wire.block(12, b"".join(self._new)) if self._new else b""
        self._new = []
        return _packet(wire.number(8, time_ns) + interned + wire.block(11, event), _NEEDED)

    def _named(self, kind: int, number_field: int, text_field: int, name: str) -> bytes:
        """Return a field with a name's number, or its text if ``_MAX_NAMES`` names have numbers."""
        number = self._names.get((kind, name))
        if number is None:
            # Limited: unique names (file paths, shapes) would fill the reader's memory otherwise.
            if len(self._names) >= _MAX_NAMES:
                return wire.text(text_field, uncontrolled(name))
            number = self._names[kind, name] = len(self._names) + 1
            self._new.append(
                wire.block(kind, wire.number(1, number) + wire.text(2, uncontrolled(name)))
            )
        return wire.number(number_field, number)

    def _annotation(self, key: str, value: object) -> bytes:
        return self._named(_ANNOTATION_NAMES, 1, 10, key) + _value(value)


def _value(value: Any) -> bytes:
    """Return an annotation's value; lists and integers beyond 64 bits are encoded as JSON text."""
    if isinstance(value, str):
        return wire.block(6, wire.utf8(uncontrolled(value)))
    # Must precede the check for int: bool is a subclass of int.
    if isinstance(value, bool):
        return wire.number(2, value)
    if isinstance(value, int) and value in _INT64:
        return wire.number(4, value)
    if isinstance(value, float):
        return wire.double(5, value)
    return wire.text(6, uncontrolled(json.dumps(value, ensure_ascii=False)))


def _packet(content: bytes, flags: int = 0) -> bytes:
    sequence = wire.number(10, 1) + (wire.number(13, flags) if flags else b"")
    return wire.block(1, content + sequence)
