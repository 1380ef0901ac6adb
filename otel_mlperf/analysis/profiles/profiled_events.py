"""Events of a profiled step: their kind of work, own time, section and enclosing operator.

They are computed from the rows of single events in the same way as windows. An event's own time
excludes the events nested in it on its thread, except Python frames. A kernel belongs to the
innermost operator above it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from otel_mlperf import names
from otel_mlperf.intervals import CoveredTime
from otel_mlperf.store.window_facts import ANNOTATION, KERNEL, OPERATOR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_mlperf.analysis.profiles.profiled_steps import StepEvents

_PYTHON: Final = "python"
_BESIDE: Final = "beside"
"""An event on a device that is not work."""
_ORDER: Final = {ANNOTATION: 0, OPERATOR: 1}
"""Nesting order of equal intervals: the lower one is outer; any other kind is innermost."""
_INNERMOST: Final = 2


class ProfiledEvent(msgspec.Struct, eq=False):
    """One event of the step."""

    rank: int
    span: str
    parent: str
    name: str
    category: str
    """As the trace writes it."""
    what: str
    kind: str
    track: int
    start_ns: int
    end_ns: int
    more: dict[str, Any]
    own_ns: int = 0
    device_ns: int = 0
    """Device time of work that it launched itself."""
    section: str = ""
    is_inside: bool = False
    """Whether an operator encloses it; for device work, whether an operator launched it."""

    @property
    def duration_ns(self) -> int:
        """Return the duration of the event."""
        return self.end_ns - self.start_ns


class _Above(NamedTuple):
    """Ancestors of an event."""

    depth: int
    annotation: str
    """Name of the innermost annotation of a person."""
    operator: ProfiledEvent | None
    anchor: str
    """Id of the nearest ancestor that is not an event."""


def find_events(
    recorded: StepEvents, known: Mapping[tuple[str, str], tuple[str, str]], step: str
) -> list[ProfiledEvent]:
    """Return the events of a step.

    Args:
        recorded: their rows, and the sections above them.
        known: what an event is and its kind, by category and name.
        step: the step's name, which is not a section.
    """
    events = [_event(row, known) for row in recorded.events]
    tree = _Tree(events, step)
    tracks: dict[tuple[int, int], list[ProfiledEvent]] = defaultdict(list)
    for event in events:
        above = tree.above(event)
        name, is_step = recorded.sections.get(above.anchor, ("", True))
        event.section = (above.annotation or name) if is_step else name
        is_captured = names.CAPTURED_OPERATOR in event.more  # preferred to the graph's launcher
        if event.what == KERNEL and above.operator is not None and not is_captured:
            above.operator.device_ns += event.duration_ns
            event.is_inside = True
        # Device events are not nested in host threads. An event in a Python frame is nested in
        # the operator around that frame.
        if event.what not in (KERNEL, _BESIDE, _PYTHON):
            tracks[event.rank, event.track].append(event)
    for there in tracks.values():
        there.sort(key=lambda event: (event.start_ns, -event.end_ns))
        # Traces in whole microseconds contain many ties, whose order determines the nesting.
        _settle_ties(there, tree)
        _take_out(there)
    return events


def _event(
    row: Mapping[str, Any], known: Mapping[tuple[str, str], tuple[str, str]]
) -> ProfiledEvent:
    more = json.loads(row["attributes"])
    category = more[names.PROFILER_ACTIVITY]
    what, kind = known.get((category, row["name"]), ("", ""))
    if what != KERNEL and more.get(names.ASYNCHRONOUS):
        what = _BESIDE
    return ProfiledEvent(
        rank=row["rank"],
        span=row["span_id"],
        parent=row["parent_id"],
        name=row["name"],
        category=category,
        what=_PYTHON if not what and _PYTHON in category else what,
        kind=kind,
        track=row["track"],
        start_ns=row["start_ns"],
        end_ns=row["end_ns"],
        more=more,
        own_ns=row["end_ns"] - row["start_ns"],
    )


class _Tree:
    """Ancestors of all events."""

    def __init__(self, events: Iterable[ProfiledEvent], step: str) -> None:
        self._by_id = {(event.rank, event.span): event for event in events}
        self._step = step
        self._below: dict[tuple[int, str], _Above] = {}

    def above(self, event: ProfiledEvent) -> _Above:
        """Return the ancestors of an event; each event is visited once, however deep they nest."""
        way = []
        key = (event.rank, event.parent)
        while key not in self._below and key in self._by_id:
            way.append(self._by_id[key])
            key = (key[0], way[-1].parent)
        nearest = self._below.get(key) or _Above(0, "", None, key[1])
        # From the outermost inward: each event inherits the ancestors of the one above it.
        for inner in reversed(way):
            is_name = inner.what == ANNOTATION and not inner.kind and inner.name != self._step
            nearest = _Above(
                nearest.depth + 1,
                inner.name if is_name else nearest.annotation,
                inner if inner.what == OPERATOR else nearest.operator,
                nearest.anchor,
            )
            self._below[inner.rank, inner.span] = nearest
        return nearest


def _settle_ties(there: list[ProfiledEvent], tree: _Tree) -> None:
    """Sort events of equal times by their nesting."""
    begin = 0
    for end in range(1, len(there) + 1):
        first = there[begin]
        if end < len(there) and _times(there[end]) == _times(first):
            continue
        if end - begin > 1:
            there[begin:end] = sorted(
                there[begin:end],
                key=lambda event: (_ORDER.get(event.what, _INNERMOST), tree.above(event).depth),
            )
        begin = end


def _times(event: ProfiledEvent) -> tuple[int, int]:
    return event.start_ns, event.end_ns


def _take_out(there: list[ProfiledEvent]) -> None:
    """Subtract nested events from the own time of the event around them.

    ``there`` is sorted by start; of events with the same start the outer ones come first.
    """
    open_: list[tuple[ProfiledEvent, CoveredTime]] = []
    for event in there:
        while open_ and not _holds(open_[-1][0], event):
            _close(*open_.pop())
        if open_:
            # Subtract it only from the innermost event: the outer ones exclude that one already.
            around, cover = open_[-1]
            cover.add(event.start_ns, event.end_ns)
            event.is_inside = around.is_inside or around.what == OPERATOR
        open_.append((event, CoveredTime(event.start_ns)))
    for left in open_:
        _close(*left)


def _holds(around: ProfiledEvent, event: ProfiledEvent) -> bool:
    """Return whether ``around`` encloses an event that does not start earlier."""
    return around.end_ns >= event.end_ns and around.end_ns > event.start_ns


def _close(event: ProfiledEvent, cover: CoveredTime) -> None:
    event.own_ns -= cover.covered_ns
