"""Parents, sections and steps of host events.

Steps are the recorded steps or, if none was recorded, the annotations ``ProfilerStep#N``. An event
is assigned to a step that is open when the event starts, namely the first of these that exists:

- the step that is open on the event's own thread;
- the step that is open on the thread that waits for the event: autograd runs the backward pass on
  threads of its own, while the thread of the forward pass waits;
- the step that is open on any thread.
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
"""Maximum time by which an event inside a section may start before the section.

The profiler's times were measured to be 1.7 µs early to 2.0 µs late, compared with the clock of
recorded sections.
"""

_ANNOTATION: Final = re.compile(r"ProfilerStep#\d+")


class HostEvents:
    """Host events, and the sections or steps that were open when the events started."""

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
        # Times of recorded sections are from the recorder's clock, hence the tolerance. Annotations
        # of steps (below) are from the trace's own clock and need no tolerance.
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
        """Return the steps, and the index of each event's step (NONE: outside of steps)."""
        steps, part_of = _recorded_steps(self._sections)
        open_ = self._open
        if not steps:
            steps = _annotated_steps(self._trace, self._annotated)
            part_of = np.arange(len(steps), dtype=np.int32)
            open_ = self._find_open(self._step_covers(steps), 0)
        inner = np.where(open_.own == NONE, open_.waiting, open_.own)
        step = np.append(part_of, np.int32(NONE))[inner]
        # No step is open on the thread of these events or on a waiting thread: the step that is
        # open at their time on any thread is used.
        unassigned = np.flatnonzero(self._is_host & (inner == NONE))
        step[unassigned] = _cover(steps).at(self._trace.events.start_ns[unassigned])
        # Backward operators outside of all steps belong to the step of their forward operator.
        outermost = forward[Forest(self._around).roots()]
        unassigned = unassigned[(step[unassigned] == NONE) & (outermost[unassigned] != NONE)]
        step[unassigned] = step[outermost[unassigned]]
        return steps, step

    def _step_covers(self, steps: list[TraceStep]) -> dict[int, Innermost]:
        start, end = _times(steps)
        track = self._trace.events.track[self._annotated]
        by_track = rows_by(track, np.arange(len(steps)))
        return {number: Innermost(start, end, rows) for number, rows in by_track.items()}

    def place(self, steps: list[TraceStep], step: NDArray[np.int32]) -> Links:
        """Return the links of host events; the arguments are the results of ``steps``."""
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
        # The closer relation first: a section on the thread that waits for the event, then the
        # section of the event's step.
        for tied, why in ((self._open.waiting, Place.ENGINE), (of_step, Place.STEP)):
            unplaced = self._is_host & (parent == NONE) & (section == NONE) & (tied != NONE)
            section[unplaced] = tied[unplaced]
            place[unplaced] = why
        section[is_twin] = twin[is_twin]
        place[is_twin] = Place.TWIN
        part_of = _recorded_steps(self._sections)[1]
        # A twin counts to the recorded step of its section, not to the step derived by time.
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
    named = np.array([bool(_ANNOTATION.fullmatch(name)) for name in trace.names] or [False])
    is_host = (roles == Role.ANNOTATION) | (roles == Role.OPERATOR)
    rows = np.flatnonzero(is_host & named[trace.events.name])
    return rows[np.argsort(trace.events.start_ns[rows], kind="stable")]


def _annotated_steps(trace: Trace, rows: NDArray[np.intp]) -> list[TraceStep]:
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
    """Return the recorded steps, and the index of each section's step (NONE: not in a step)."""
    rows = np.flatnonzero(sections.is_step).tolist()
    steps = [
        TraceStep(sections.name[at], int(sections.start_ns[at]), int(sections.end_ns[at]), NONE, at)
        for at in rows
    ]
    traces = [trace.tobytes() for trace in sections.trace_id]
    number = {traces[at]: index for index, at in enumerate(rows)}
    part_of = np.array([number.get(trace, NONE) for trace in traces], np.int32)
    return steps, part_of
