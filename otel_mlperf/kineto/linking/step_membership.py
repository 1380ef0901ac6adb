"""To which step does each event count?

Steps are recorded ones, or else the annotations ``ProfilerStep#N``. An event of the host counts to
the step in which it begins: on its own thread, or else on the thread that waits for it (autograd
runs the backward pass on threads of its own, for the thread that ran the forward pass), or else at
its time on any. An event of a device counts to the step of the call that launched it, however late
the device gets to it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.linking.roles import Role
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.trace_events import Trace

_ANNOTATION: Final = re.compile(r"ProfilerStep#\d+")


class Step(NamedTuple):
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


def annotated_steps(trace: Trace, rows: NDArray[np.intp]) -> list[Step]:
    """The steps that annotations show."""
    events = trace.events
    start = events.start_ns[rows]
    end = start + np.maximum(events.duration_ns[rows], 0)
    named = [trace.names[number] for number in events.name[rows].tolist()]
    return [
        Step(name, begin, stop, row, NONE)
        for name, begin, stop, row in zip(
            named, start.tolist(), end.tolist(), rows.tolist(), strict=True
        )
    ]


def recorded_steps(sections: Sections) -> tuple[list[Step], NDArray[np.int32]]:
    """The recorded steps, and for each section the index of the step that it is part of."""
    rows = np.flatnonzero(sections.is_step).tolist()
    steps = [
        Step(sections.name[at], int(sections.start_ns[at]), int(sections.end_ns[at]), NONE, at)
        for at in rows
    ]
    traces = [trace.tobytes() for trace in sections.trace_id]
    number = {traces[at]: index for index, at in enumerate(rows)}
    part_of = np.array([number.get(trace, NONE) for trace in traces], np.int32)
    return steps, part_of
