"""What does linking say about each event of a trace: what is above it, and to which step it counts?

Steps are recorded ones, or else the annotations ``ProfilerStep#N``. An event of the host counts to
the step in which it begins: on its own thread, or else on the thread that waits for it (autograd
runs the backward pass on threads of its own, for the thread that ran the forward pass), or else at
its time on any. An event of a device counts to the step of the call that launched it, however late
the device gets to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.linking.roles import Role
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.trace_events import Trace

_ANNOTATION: Final = re.compile(r"ProfilerStep#\d+")


class TraceStep(NamedTuple):
    """A step that the trace shows."""

    name: str
    start_ns: int
    end_ns: int
    row: int
    """Its annotation; NONE where it was recorded."""
    section: int
    """Index into the sections; NONE where it is an annotation."""


def step_annotations(trace: Trace, roles: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Rows of the annotations of steps, by start."""
    named = np.array([bool(_ANNOTATION.fullmatch(name)) for name in trace.names] or [False])
    is_host = (roles == Role.ANNOTATION) | (roles == Role.OPERATOR)
    rows = np.flatnonzero(is_host & named[trace.events.name])
    return rows[np.argsort(trace.events.start_ns[rows], kind="stable")]


def annotated_steps(trace: Trace, rows: NDArray[np.intp]) -> list[TraceStep]:
    """The steps that annotations show."""
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


def recorded_steps(sections: Sections) -> tuple[list[TraceStep], NDArray[np.int32]]:
    """The recorded steps, and for each section the index of the step that it is part of."""
    rows = np.flatnonzero(sections.is_step).tolist()
    steps = [
        TraceStep(sections.name[at], int(sections.start_ns[at]), int(sections.end_ns[at]), NONE, at)
        for at in rows
    ]
    traces = [trace.tobytes() for trace in sections.trace_id]
    number = {traces[at]: index for index, at in enumerate(rows)}
    part_of = np.array([number.get(trace, NONE) for trace in traces], np.int32)
    return steps, part_of


class Place(IntEnum):
    """Why an event is where it is."""

    ROOT = 0
    """A host event that nothing is around."""
    NESTED = 1
    """A host event within the time of its parent, on the same thread."""
    LAUNCHED = 2
    """A device event under what launched it, by the correlation of the call."""
    ASKED = 3
    """A device event without its call, under the operator of its External id."""
    ANNOTATED = 4
    """A device's copy of a host annotation, under that annotation."""
    SECTION = 5
    """Under the recorded section that was open on its thread, even if an event is around both."""
    ENGINE = 6
    """A root on a thread of autograd, under the section open on the thread that waits for it."""
    STEP = 7
    """A root on another thread without sections, under the step of its time."""
    TWIN = 8
    """An annotation that is a recorded section once more: not to be shown again."""
    WINDOW = 9
    """The profiler's own span around everything."""
    ORPHAN = 10
    """A device event of which nobody knows who launched it."""


@dataclass(slots=True)
class Links:
    """Where each event belongs; every array has one item for each event of the trace."""

    parent: NDArray[np.int32]
    """Row of the event above it; NONE: a root."""
    around: NDArray[np.int32]
    """For host events: row of the one that contains it on its thread, whatever is shown above."""
    section: NDArray[np.int32]
    """For roots: index of the recorded section above; NONE: none. A twin's is its own section."""
    step: NDArray[np.int32]
    """Index into ``steps``; NONE: outside of any."""
    forward: NDArray[np.int32]
    """For backward operators: row of the forward operator."""
    launch: NDArray[np.int32]
    """For device events: row of the call of runtime or driver that launched it."""
    place: NDArray[np.uint8]
    """A ``Place``."""
    is_device: NDArray[np.bool_]
    """Whether it ran on a device, not on a thread of the host."""
    steps: list[TraceStep]
    orphans: dict[str, int]
    """What could not be linked, or contradicts itself, by kind: how many."""
