"""Roles of events, and the links of each event: parent, section, step and launch.

The role of an event is determined from its category, independent of profiler version and vendor.
``link`` derives the links, and all later stages use them.
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
    """Role of an event: its type, independent of the vendor."""

    HOST = 0
    """Event of unknown type on a thread of the host."""
    OPERATOR = 1
    ANNOTATION = 2
    PYTHON = 3
    """A frame of Python's stack."""
    CALL = 4
    """A call of a runtime or driver."""
    DEVICE = 5
    DEVICE_ANNOTATION = 6
    """Device's copy of an annotation; it lasts as long as the device works for the annotation."""
    WINDOW = 7
    """The profiler's own span around all events."""
    SUMMARY = 8
    """Event on a device's row that is not work: it repeats other rows, or waits for an event."""


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
"""Name prefixes of waits on Ascend's streams."""
_XLA_FLOW: Final = re.compile(r"(?:while|conditional|call)(?:\.\d+)?")
"""Names of XLA's control flow, whose records contain the records of other work."""
_XLA_FRAME: Final = "$"
"""Name prefix of Python frames in traces of JAX, e.g. ``$train.py:12 step``."""


def find_roles(trace: Trace) -> NDArray[np.uint8]:
    """Return the role of each event.

    An event of unknown category is a device event if it has a stream, because runtime calls and
    operators have none. If it has no stream, the kind of its timeline row determines the role.
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
        # Without categories for annotations, steps are written as operators.
        is_host = (roles == Role.OPERATOR) | (roles == Role.HOST)
        is_step = _of_names(trace, [name.startswith(_STEP) for name in trace.names])
        roles[is_host & is_step] = Role.ANNOTATION
    return roles


def _with_parts(trace: Trace, flow: NDArray[np.bool_], work: NDArray[np.bool_]) -> NDArray[np.intp]:
    events, found = trace.events, [np.zeros(0, np.intp)]
    for track in np.unique(events.track[flow]).tolist():
        on_track = events.track == track
        rows, starts = np.flatnonzero(flow & on_track), np.sort(events.start_ns[work & on_track])
        started = np.searchsorted(starts, events.start_ns[rows])
        ended = np.searchsorted(starts, events.start_ns[rows] + events.duration_ns[rows])
        found.append(rows[ended > started])
    return np.concatenate(found)


def is_category_known(trace: Trace) -> NDArray[np.bool_]:
    """Return for each event whether its category is one that Kineto defines."""
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
    """Step of a trace: a recorded step or an annotation."""

    name: str
    start_ns: int
    end_ns: int
    row: int
    """Row of the annotation; NONE if the step was recorded."""
    section: int
    """Index into the recorded sections; NONE if the step is an annotation."""


class Place(IntEnum):
    """Reason why an event has its parent."""

    ROOT = 0
    """Host event without any event around it."""
    NESTED = 1
    """Host event within the time of its parent, on the same thread."""
    LAUNCHED = 2
    """Device event whose parent is the operator of its launching call, matched by correlation."""
    ASKED = 3
    """Device event without its call, whose parent is the operator of its External id."""
    ANNOTATED = 4
    """Device's copy of a host annotation; that annotation is its parent."""
    SECTION = 5
    """Host event under the recorded section on its thread, even if an event is around both."""
    ENGINE = 6
    """Root on a thread of autograd; its section is open on the thread that waits for autograd."""
    STEP = 7
    """Root on another thread without sections, under the step that is open at its start."""
    TWIN = 8
    """Annotation that repeats a recorded section and is not sent."""
    WINDOW = 9
    """The profiler's own span around all events."""
    ORPHAN = 10
    """Device event whose launch is not known."""


@dataclass(slots=True)
class Links:
    """Links of each event; every array has one item for each event of the trace."""

    parent: NDArray[np.int32]
    """Row of the parent event; NONE for a root."""
    around: NDArray[np.int32]
    """Row of the event around a host event on its thread, independent of ``parent``."""
    section: NDArray[np.signedinteger[Any]]
    """Index of the recorded section above a root, or of the section that a twin repeats.

    ``link`` converts this column, ``step`` and ``forward`` to the narrowest sufficient integer
    type.
    """
    step: NDArray[np.signedinteger[Any]]
    """Index into ``steps``; NONE if the event is outside of all steps."""
    forward: NDArray[np.signedinteger[Any]]
    """Row of the forward operator of a backward operator; NONE for other events."""
    launch: NDArray[np.int32]
    """Row of the runtime or driver call that launched a device event; NONE if not known."""
    place: NDArray[np.uint8]
    """Reason for the parent, as a ``Place``."""
    is_device: NDArray[np.bool_]
    """Whether the event ran on a device, not on a thread of the host."""
    steps: list[TraceStep]
    orphans: dict[str, int]
    """Number of unlinked or contradictory events, by kind."""
