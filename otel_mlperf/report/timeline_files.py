"""Writer of a run's timeline into a file, independent of the file format."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from otel_mlperf.analysis.timeline.run_marks import read_marks
from otel_mlperf.analysis.timeline.run_timeline import read_points, read_spans, read_steps, start_of
from otel_mlperf.analysis.timeline.timeline_tracks import Lanes, TimelineTracks

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.analysis.steps.step_selection import Selected
    from otel_mlperf.analysis.timeline.timeline_tracks import Instant, Point, Slice, TimelineTrack

_LANES = 1000
_TRACKS = 100_000


class Format(Protocol):
    """Encoder of a timeline into bytes. A line is one lane of a track; numbers start at 1."""

    def begin(self, start_ns: int) -> bytes:
        """Return the start of the file; ``start_ns`` is the earliest Unix time in the timeline."""
        ...

    def line(self, number: int, track: TimelineTrack, lane: int) -> bytes:
        """Return the declaration of the line ``number``, which precedes all events on the line."""
        ...

    def slice(self, line: int, piece: Slice) -> bytes:
        """Return the start of a slice, which nests in the slices that are open on its line."""
        ...

    def ended(self, line: int, end_ns: int) -> bytes:
        """Return the end of the innermost open slice on a line."""
        ...

    def instant(self, line: int, instant: Instant) -> bytes:
        """Return an event without a duration."""
        ...

    def point(self, line: int, point: Point) -> bytes:
        """Return a counter's new value as an event."""
        ...

    def end(self) -> bytes:
        """Return the end of the file."""
        ...


class Counts(NamedTuple):
    """Numbers of written lines, slices, counter points and instants."""

    lines: int
    slices: int
    points: int
    instants: int


def line_name(track: TimelineTrack, lane: int) -> str:
    """Return the label of a line: the track's name, with a number from the second lane upward."""
    return f"{track.name} ({lane + 1})" if lane else track.name


def line_place(track: TimelineTrack, lane: int) -> int:
    """Return a line's sort key in its process; a track's roll-ups sort directly after the track."""
    place = min(2 * track.place + track.rolls_up, _TRACKS - 1) * _LANES
    return track.kind * _TRACKS * _LANES + place + min(lane, _LANES - 1)


def write_timeline(selected: Selected, form: Format, write: Callable[[bytes], object]) -> Counts:
    """Pass the timeline, encoded by ``form``, to ``write`` in pieces; return what was written."""
    tracks = TimelineTracks(selected.store)
    lines = _Lines(form, write)
    slices = points = instants = 0
    write(form.begin(start_of(selected)))
    for piece in chain(read_steps(selected, tracks), read_spans(selected, tracks)):
        slices += 1
        lines.slice(piece)
    lines.close()
    for instant in read_marks(selected, tracks):
        instants += 1
        write(form.instant(lines.number(instant.track, 0), instant))
    for point in read_points(selected, tracks):
        points += 1
        write(form.point(lines.number(point.track, 0), point))
    write(form.end())
    return Counts(len(lines), slices, points, instants)


class _Lines:
    """Lines of the file; slices are assigned to lines such that the slices of a line nest."""

    def __init__(self, form: Format, write: Callable[[bytes], object]) -> None:
        self._form = form
        self._write = write
        self._lanes: dict[TimelineTrack, Lanes] = {}
        self._numbers: dict[tuple[TimelineTrack, int], int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, track: TimelineTrack, lane: int) -> int:
        """Return the number of a line; a new line is first declared in the file."""
        number = self._numbers.get((track, lane))
        if number is None:
            number = self._numbers[track, lane] = len(self._numbers) + 1
            self._write(self._form.line(number, track, lane))
        return number

    def slice(self, piece: Slice) -> None:
        """Write a slice on a line where it nests. Slices must be passed in order of start."""
        lanes = self._lanes.get(piece.track)
        if lanes is None:
            lanes = self._lanes[piece.track] = Lanes()
        placed = lanes.place(piece.start_ns, piece.end_ns, piece.span, piece.parent)
        self._end(piece.track, placed.ended)
        self._write(self._form.slice(self.number(piece.track, placed.lane), piece))

    def close(self) -> None:
        for track, lanes in self._lanes.items():
            self._end(track, lanes.close())

    def _end(self, track: TimelineTrack, ended: list[tuple[int, int]]) -> None:
        for lane, end_ns in ended:
            self._write(self._form.ended(self.number(track, lane), end_ns))
