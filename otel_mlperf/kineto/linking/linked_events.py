"""Roles of events, and the links of each event: parent, section, step and launch.

The role follows from the event's category, independent of version and vendor. Everything else is
derived by linking (``link``), in the terms that all later stages use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.linking.device_tracks import TrackKind, find_device_tracks
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.trace_events import Trace


class Role(IntEnum):
    """The role of an event."""

    HOST = 0
    """On a thread of the host, without more information."""
    OPERATOR = 1
    ANNOTATION = 2
    PYTHON = 3
    """A frame of Python's stack."""
    CALL = 4
    """A call of a runtime or driver."""
    DEVICE = 5
    DEVICE_ANNOTATION = 6
    """A device's copy of an annotation, as long as the device worked for it."""
    WINDOW = 7
    """The profiler's own span around everything."""
    SUMMARY = 8
    """On a device's rows, but not work: a copy of other rows, or a wait for an event."""


_ROLES: Final = {
    Role.OPERATOR: {"cpu_op", "operator"},
    Role.ANNOTATION: {"user_annotation", "profilerstep"},
    Role.PYTHON: {"python_function", "python"},
    Role.CALL: {
        *("runtime", "driver", "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver"),
        *("xpu_runtime", "xpu_driver", "mtia_runtime", "glow_runtime"),
        *("privateuse1_runtime", "privateuse1_driver"),
    },
    Role.DEVICE: {
        *("kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"),
        *("cuda_sync", "cuda_event", "mtia_ccp_events", "mtia_workloadd", "hpu_op"),
        *("collective_comm", "cuda_profiler_range"),
    },
    Role.DEVICE_ANNOTATION: {"gpu_user_annotation"},
    Role.WINDOW: {"trace"},
    Role.HOST: {"overhead", "cpu_instant_event"},
}
_UNKNOWN: Final = 255
_KNOWN: Final = {category: role for role, known in _ROLES.items() for category in known}
IS_DEVICE: Final = (Role.DEVICE, Role.DEVICE_ANNOTATION, Role.SUMMARY)
_BY_TRACK: Final = {
    TrackKind.HOST: Role.HOST,
    TrackKind.OPERATORS: Role.OPERATOR,
    TrackKind.WORK: Role.DEVICE,
    TrackKind.SUMMARY: Role.SUMMARY,
    TrackKind.UNKNOWN: Role.HOST,
}
_STEP: Final = "ProfilerStep#"
_WAITS: Final = re.compile(r"(?:event|notify)_(?:wait|record)", re.IGNORECASE)
"""Prefixes of names on Ascend's streams."""
_XLA_FLOW: Final = re.compile(r"(?:while|conditional|call)(?:\.\d+)?")
"""Names of XLA's control flow, whose records contain those of their parts."""
_XLA_FRAME: Final = "$"
"""Prefix of the names of Python's frames in traces of JAX: ``$train.py:12 step``."""


def find_roles(trace: Trace) -> NDArray[np.uint8]:
    """Return the role of each event.

    An event of an unknown category with a stream is the device's (runtime calls and operators have
    none); otherwise its row of the timeline decides.
    """
    if trace.roles is not None:
        return trace.roles
    known = np.array([_KNOWN.get(name, _UNKNOWN) for name in trace.categories] or [0], np.uint8)
    roles = known[trace.events.category]
    has_annotations = not _ROLES[Role.ANNOTATION].isdisjoint(trace.categories)
    if has_annotations and not (roles == _UNKNOWN).any():
        return roles
    trace.roles = _guessed(trace, roles, has_annotations=has_annotations)
    return trace.roles


def _guessed(trace: Trace, roles: NDArray[np.uint8], *, has_annotations: bool) -> NDArray[np.uint8]:
    """Return the roles, completed from rows of the timeline and names."""
    is_guessed = roles == _UNKNOWN
    if is_guessed.any():
        has_stream = trace.events.stream != NONE
        roles = np.where(
            is_guessed, np.where(has_stream, np.uint8(Role.DEVICE), _by_track(trace)), roles
        )
        waits = _of_names(trace, [_WAITS.match(name) is not None for name in trace.names])
        roles[is_guessed & waits & (roles == Role.DEVICE)] = Role.SUMMARY
        flow = _of_names(trace, [_XLA_FLOW.fullmatch(name) is not None for name in trace.names])
        flow &= is_guessed & (roles == Role.DEVICE)
        roles[_with_parts(trace, flow, (roles == Role.DEVICE) & ~flow)] = Role.SUMMARY
        frames = _of_names(trace, [name.startswith(_XLA_FRAME) for name in trace.names])
        roles[is_guessed & frames & (roles == Role.OPERATOR)] = Role.PYTHON
    if not has_annotations:
        # Without categories of annotations, steps are among the operators.
        is_host = (roles == Role.OPERATOR) | (roles == Role.HOST)
        is_step = _of_names(trace, [name.startswith(_STEP) for name in trace.names])
        roles[is_host & is_step] = Role.ANNOTATION
    return roles


def _with_parts(trace: Trace, flow: NDArray[np.bool_], work: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return the rows of control flow in whose time other work of their track starts."""
    events, found = trace.events, [np.zeros(0, np.intp)]
    for track in np.unique(events.track[flow]).tolist():
        on_track = events.track == track
        rows, starts = np.flatnonzero(flow & on_track), np.sort(events.start_ns[work & on_track])
        begun = np.searchsorted(starts, events.start_ns[rows])
        ended = np.searchsorted(starts, events.start_ns[rows] + events.duration_ns[rows])
        found.append(rows[ended > begun])
    return np.concatenate(found)


def is_category_known(trace: Trace) -> NDArray[np.bool_]:
    """Return for each event whether its category is one of those that Kineto writes."""
    known: NDArray[np.bool_] = np.array([name in _KNOWN for name in trace.categories] or [False])
    return known[trace.events.category]


def _by_track(trace: Trace) -> NDArray[np.uint8]:
    by_track: list[int] = [_BY_TRACK[track.kind] for track in find_device_tracks(trace.tracks)]
    of_events: NDArray[np.uint8] = np.array(by_track or [0], np.uint8)[trace.events.track]
    return of_events


def _of_names(trace: Trace, wanted: list[bool]) -> NDArray[np.bool_]:
    of_events: NDArray[np.bool_] = np.array(wanted or [False])[trace.events.name]
    return of_events


class TraceStep(NamedTuple):
    """A step that the trace shows."""

    name: str
    start_ns: int
    end_ns: int
    row: int
    """Row of its annotation; NONE if it was recorded."""
    section: int
    """Index into the sections; NONE if it is an annotation."""


class Place(IntEnum):
    """Reason why an event has its parent."""

    ROOT = 0
    """A host event without any event around it."""
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
    """An annotation that repeats a recorded section: not to be shown again."""
    WINDOW = 9
    """The profiler's own span around everything."""
    ORPHAN = 10
    """A device event whose launch is not known."""


@dataclass(slots=True)
class Links:
    """Links of each event; every array has one item for each event of the trace."""

    parent: NDArray[np.int32]
    """Row of the event above it; NONE: a root."""
    around: NDArray[np.int32]
    """For host events: row of the event that contains it on its thread, independent of ``parent``.
    """
    section: NDArray[np.signedinteger[Any]]
    """For roots: index of the recorded section above; NONE: no section. A twin's is its own
    section. Once all is linked, this and the next two are in the narrowest sufficient integer
    type.
    """
    step: NDArray[np.signedinteger[Any]]
    """Index into ``steps``; NONE: outside of any step."""
    forward: NDArray[np.signedinteger[Any]]
    """For backward operators: row of the forward operator."""
    launch: NDArray[np.int32]
    """For device events: row of the call of runtime or driver that launched it."""
    place: NDArray[np.uint8]
    """A ``Place``."""
    is_device: NDArray[np.bool_]
    """Whether it ran on a device, not on a thread of the host."""
    steps: list[TraceStep]
    orphans: dict[str, int]
    """Number of unlinked or contradictory events, by kind."""
