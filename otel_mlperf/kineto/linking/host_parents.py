"""Parents, sections and steps of host events.

Steps are recorded ones, or else the annotations ``ProfilerStep#N``. An event counts to the step in
which it starts. The first of these that is known decides:

- the step open on its own thread;
- the step open on the thread that waits for it: autograd runs the backward pass on threads of its
  own, for the thread that ran the forward pass;
- the step open at its time on any thread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.linked_events import (
    IS_DEVICE,
    Links,
    Place,
    Role,
    TraceStep,
)
from otel_mlperf.kineto.linking.sections import find_twins, is_of_section, sections_of_tracks
from otel_mlperf.kineto.linking.threads import Innermost, find_open, rows_by
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.linking.threads import Open
    from otel_mlperf.kineto.trace_events import Trace

TOLERANCE_NS: Final = 3_000
"""By how much an event may seem to start before the section that it is in: the times of the
profiler were measured 1.7 µs early to 2.0 µs late against the clock that sections are recorded by.
"""

_ANNOTATION: Final = re.compile(r"ProfilerStep#\d+")


class HostEvents:
    """The host events, and the sections or steps that were open around them."""

    def __init__(
        self,
        trace: Trace,
        roles: NDArray[np.uint8],
        is_host: NDArray[np.bool_],
        around: NDArray[np.int32],
        waiting: NDArray[np.int32],
        sections: Sections,
    ) -> None:
        self._trace, self._roles, self._is_host = trace, roles, is_host
        self._around, self._waiting, self._sections = around, waiting, sections
        self._of_track = sections_of_tracks(trace, sections.thread)
        # Recorded sections are in the recorder's clock, hence the tolerance; annotations of steps
        # below are in the trace's own clock and need none.
        self._open = self._find_open(
            {
                track: Innermost(sections.start_ns, sections.end_ns, rows)
                for track, rows in self._of_track.items()
            },
            TOLERANCE_NS,
        )
        self._annotated = _step_annotations(trace, roles)

    def _find_open(self, covers: dict[int, Innermost], tolerance_ns: int) -> Open:
        return find_open(self._trace, self._is_host, covers, self._waiting, tolerance_ns)

    def steps(self, forward: NDArray[np.int32]) -> tuple[list[TraceStep], NDArray[np.int32]]:
        """Return the steps, and the index of the step of each host event."""
        steps, part_of = _recorded_steps(self._sections)
        open_ = self._open
        if not steps:
            steps = _annotated_steps(self._trace, self._annotated)
            part_of = np.arange(len(steps), dtype=np.int32)
            open_ = self._find_open(self._step_covers(steps), 0)
        inner = np.where(open_.own == NONE, open_.waiting, open_.own)
        step = np.append(part_of, np.int32(NONE))[inner]
        # The thread of these events is not known to belong to a step: the time decides, on
        # whatever thread the step is.
        untold = np.flatnonzero(self._is_host & (inner == NONE))
        step[untold] = _cover(steps).at(self._trace.events.start_ns[untold])
        # Backward operators after the end of any step belong to the step of their forward
        # operator.
        outermost = forward[Forest(self._around).roots()]
        untold = untold[(step[untold] == NONE) & (outermost[untold] != NONE)]
        step[untold] = step[outermost[untold]]
        return steps, step

    def _step_covers(self, steps: list[TraceStep]) -> dict[int, Innermost]:
        start, end = _times(steps)
        track = self._trace.events.track[self._annotated]
        by_track = rows_by(track, np.arange(len(steps)))
        return {number: Innermost(start, end, rows) for number, rows in by_track.items()}

    def place(self, steps: list[TraceStep], step: NDArray[np.int32]) -> Links:
        """Return the parents and sections of host events."""
        twin = find_twins(
            self._trace,
            self._sections,
            self._of_track,
            np.flatnonzero(self._roles == Role.ANNOTATION),
            self._annotated,
        )
        is_twin = twin != NONE
        parent = Forest(self._around).nearest(~is_twin) if is_twin.any() else self._around.copy()
        own, start = self._open.own, self._trace.events.start_ns
        in_section = is_of_section(parent, start, own, self._sections)
        parent[in_section | is_twin] = NONE
        place = np.where(parent == NONE, Place.ROOT, Place.NESTED).astype(np.uint8)
        place[self._roles == Role.WINDOW] = Place.WINDOW
        section = np.where(in_section, own, NONE)
        place[in_section] = Place.SECTION
        of_step = np.array([trace_step.section for trace_step in steps] + [NONE], np.int32)[step]
        # The nearer relation first: a section that waits for the event's thread, else the step
        # that it counts to.
        for tied, why in ((self._open.waiting, Place.ENGINE), (of_step, Place.STEP)):
            left = self._is_host & (parent == NONE) & (section == NONE) & (tied != NONE)
            section[left] = tied[left]
            place[left] = why
        section[is_twin] = twin[is_twin]
        place[is_twin] = Place.TWIN
        part_of = _recorded_steps(self._sections)[1]
        # A twin counts to the step of its section, which was recorded, and not to a derived one.
        known = np.append(part_of, np.int32(NONE))[np.where(is_twin, twin, NONE)]
        step = np.where(known == NONE, step, known)
        nothing = np.full(len(parent), NONE, np.int32)
        return Links(
            parent=parent,
            around=self._around,
            section=section.astype(np.int32),
            step=step,
            forward=nothing,
            launch=nothing.copy(),
            place=place,
            is_device=np.isin(self._roles, IS_DEVICE),
            steps=steps,
            orphans={},
        )


def _times(steps: list[TraceStep]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return (
        np.array([step.start_ns for step in steps], np.int64),
        np.array([step.end_ns for step in steps], np.int64),
    )


def _cover(steps: list[TraceStep]) -> Innermost:
    return Innermost(*_times(steps))


def _step_annotations(trace: Trace, roles: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Return the rows of the annotations of steps, by start."""
    named = np.array([bool(_ANNOTATION.fullmatch(name)) for name in trace.names] or [False])
    is_host = (roles == Role.ANNOTATION) | (roles == Role.OPERATOR)
    rows = np.flatnonzero(is_host & named[trace.events.name])
    return rows[np.argsort(trace.events.start_ns[rows], kind="stable")]


def _annotated_steps(trace: Trace, rows: NDArray[np.intp]) -> list[TraceStep]:
    """Return the steps that annotations show."""
    events = trace.events
    start = events.start_ns[rows]
    end = start + np.maximum(events.duration_ns[rows], 0)
    named = [trace.names[number] for number in events.name[rows].tolist()]
    return [
        TraceStep(name, begin, stop, row, NONE)
        for name, begin, stop, row in zip(
            named, start.tolist(), end.tolist(), rows.tolist(), strict=True
        )
    ]


def _recorded_steps(sections: Sections) -> tuple[list[TraceStep], NDArray[np.int32]]:
    """Return the recorded steps, and for each section the index of its step."""
    rows = np.flatnonzero(sections.is_step).tolist()
    steps = [
        TraceStep(sections.name[at], int(sections.start_ns[at]), int(sections.end_ns[at]), NONE, at)
        for at in rows
    ]
    traces = [trace.tobytes() for trace in sections.trace_id]
    number = {traces[at]: index for index, at in enumerate(rows)}
    part_of = np.array([number.get(trace, NONE) for trace in traces], np.int32)
    return steps, part_of
