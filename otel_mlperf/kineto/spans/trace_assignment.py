"""Assignment of events to traces: the trace id, parent span and span id of each event.

Each step is a trace. For a window of a run, it is the trace of the recorded step, and the parent of
events without a parent in the profile is the recorded section that was open. Otherwise each step of
the profile is a trace of its own, and all events outside of steps form one more trace. If traces of
several ranks are imported into one run, the same step of all ranks is one trace. Python functions
are not parents of spans: they are rolled up, and events in them become children of the event above.

Span ids are derived from the file's digest and the event's byte position, so that repeated imports
create the same ids. Within a file, ids are unique and not zero, because the mixing function is
bijective, and no position results in the value that is mixed to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import ids
from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.linking.linked_events import Place, Role, find_roles
from otel_mlperf.kineto.reading.value_columns import narrowed
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.journal.profiler_windows import Window
    from otel_mlperf.kineto.linking.linked_events import Links, TraceStep
    from otel_mlperf.kineto.linking.sections import Sections
    from otel_mlperf.kineto.trace_events import Trace

_OUTSIDE: Final = "outside"
_PLACES: Final = 61
"""Number of bits for the byte position of an event."""
_ROLL_UP: Final = np.uint64(1 << _PLACES)
_NEVER: Final = np.uint64(1 << 62)
"""Bit that is set in every base and in no position, so that their XOR is never zero."""


def span_ids(digest: str, position: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """Return the span ids of the events at these byte positions of the file with ``digest``."""
    return _mixed(position.astype(np.uint64) ^ _base(digest))


def roll_up_ids(digest: str, position: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """Return the span ids of roll-ups whose first events are at ``position``.

    These ids differ from the span ids of all events.
    """
    return _mixed((position.astype(np.uint64) | _ROLL_UP) ^ _base(digest))


def trace_id(digest: str, part: str) -> bytes:
    """Return the trace id (16 bytes) of one part of a file that belongs to no run."""
    return blake2b(f"{digest}\0{part}".encode(), digest_size=16).digest()


def _base(digest: str) -> np.uint64:
    half = blake2b(digest.encode(), digest_size=8).digest()
    # With a bit that no position has, base XOR position and thus the mixed id are never zero.
    return np.uint64(int.from_bytes(half, "big")) | _NEVER


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of splitmix64, which is bijective and maps only zero to zero."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@dataclass(frozen=True)
class Assignment:
    """Assignment of each event to a trace and a parent span."""

    forest: Forest
    """Parents of events; ``hidden`` and ``never`` events are skipped."""
    anchor: NDArray[np.signedinteger[Any]]
    """Anchor of each event's root, as an index into ``anchor_span`` and ``anchor_trace``."""
    anchor_span: NDArray[np.uint64]
    """Id of the span that is the parent of the anchor's roots; 0 if they have no parent."""
    anchor_trace: NDArray[np.signedinteger[Any]]
    """Index into ``traces``."""
    traces: list[bytes]
    """Trace ids of 16 bytes each."""
    recorded: list[int]
    """Number of recorded sections of this process in each trace."""
    phases: list[str]
    """Phase of each trace's step; empty if the trace is not a recorded step."""
    hidden: NDArray[np.bool_]
    """Whether a recorded section already represents the event."""
    never: NDArray[np.bool_]
    """Whether the event is always rolled up, independent of the budget."""

    @cached_property
    def trace(self) -> NDArray[np.signedinteger[Any]]:
        """Index into ``traces`` of each event's trace."""
        of_events: NDArray[np.signedinteger[Any]] = self.anchor_trace[self.anchor]
        return of_events


def find_assignment(
    trace: Trace,
    links: Links,
    sections: Sections | None = None,
    window: Window | None = None,
    *,
    run_id: str = "",
    whole: bool = False,
) -> Assignment:
    """Return the assignment of all events to traces and parent spans.

    Args:
        trace: the events.
        links: the result of ``link`` for the events.
        sections: the recorded sections to which ``links`` refer.
        window: window of a run; None if the file does not belong to a recorded window.
        run_id: id of the run to which a file without a window is added; empty for no run.
        whole: whether Python functions also become spans.
    """
    hidden = links.place == Place.TWIN
    python = find_roles(trace) == Role.PYTHON
    never = np.zeros(len(hidden), bool) if whole else python & ~hidden
    # Skipped events are bridged: the parent of events under a Python frame is the event above the
    # frame.
    parent = Forest(links.parent).nearest(~(hidden | never))
    root, step, section = _of_roots(links, parent, sections)
    known = _Anchors(trace.digest, sections, window, run_id)
    keys = _keys(section, step, links.steps)
    lowest = int(keys.min(initial=0))
    anchors = np.zeros(int(keys.max(initial=0)) - lowest + 1, np.int64)
    for key in np.flatnonzero(np.bincount(keys - lowest)).tolist():
        anchors[key] = known.at(key + lowest, links.steps)
    return Assignment(
        forest=Forest(parent),
        anchor=narrowed(anchors)[(keys - lowest)[root]],
        anchor_span=np.array(known.spans, np.uint64),
        anchor_trace=narrowed(np.array(known.of_trace, np.int64)),
        traces=list(known.traces),
        recorded=list(known.recorded()),
        phases=known.phases(),
        hidden=hidden,
        never=never,
    )


def _of_roots(
    links: Links, parent: NDArray[np.int32], sections: Sections | None
) -> tuple[NDArray[np.int32], NDArray[np.signedinteger[Any]], NDArray[np.signedinteger[Any]]]:
    """Return, for each event, its root, its step and the nearest recorded section above it.

    Modifies ``parent`` in place: the annotation of a step that was not recorded becomes a root, and
    the parent of the step's roots that have no recorded section.
    """
    section: NDArray[np.signedinteger[Any]] = np.full(len(parent), NONE, np.int8)
    if sections is not None:
        above = Forest(links.parent).nearest(links.section != NONE)
        section = np.where(links.section != NONE, links.section, links.section[above])
        section[(above == NONE) & (links.section == NONE)] = NONE
    rows = np.array([step.row for step in links.steps], np.int64)
    annotated = rows[rows != NONE]
    parent[annotated] = NONE
    loose = (parent == NONE) & (links.step != NONE) & (section == NONE)
    loose[annotated] = False
    loose = np.flatnonzero(loose)
    parent[loose] = rows[links.step[loose]]
    return Forest(parent).roots(), links.step, section


def _keys(
    section: NDArray[np.signedinteger[Any]],
    step: NDArray[np.signedinteger[Any]],
    steps: list[TraceStep],
) -> NDArray[np.int32]:
    """Return the key of each event's anchor: the index of its section or of its step's section.

    For a step that was not recorded, the key is -2 minus the step's index; outside of steps, NONE.
    """
    # Key of each step; the last item is for NONE, that is, no step.
    of_step = [
        trace_step.section if trace_step.section != NONE else -2 - at
        for at, trace_step in enumerate(steps)
    ]
    keys: NDArray[np.int32] = np.array([*of_step, NONE], np.int32)[step]
    return np.where(section != NONE, section, keys)


class _Anchors:
    """Collection of traces, and of anchors: the parent spans of the roots in each trace."""

    def __init__(
        self, digest: str, sections: Sections | None, window: Window | None, run_id: str
    ) -> None:
        self._digest, self._sections, self._window = digest, sections, window
        self._run_id = run_id
        self.traces: dict[bytes, int] = {}
        self.spans: list[int] = []
        self.of_trace: list[int] = []

    def at(self, key: int, steps: list[TraceStep]) -> int:
        """Add the anchor for a key of ``_keys``, and return the anchor's index."""
        trace, span = self._find(key, steps)
        self.spans.append(span)
        self.of_trace.append(self.traces.setdefault(trace, len(self.traces)))
        return len(self.spans) - 1

    def _find(self, key: int, steps: list[TraceStep]) -> tuple[bytes, int]:
        if key >= 0 and self._sections is not None:
            return self._sections.trace_id[key].tobytes(), int(self._sections.span_id[key])
        window = self._window
        if window is not None:
            trace = ids.run_trace_id(window.run_id, window.restart).to_bytes(16, "big")
            return trace, int(window.parent or "0", 16)
        if self._run_id:
            return self._shared(steps[-2 - key] if key <= -2 else None, steps), 0
        if key <= -2:
            return trace_id(self._digest, f"{-2 - key} {steps[-2 - key].name}"), 0
        return trace_id(self._digest, _OUTSIDE), 0

    def _shared(self, step: TraceStep | None, steps: list[TraceStep]) -> bytes:
        """Return the trace id of a step (None: no step), the same on all ranks of the run."""
        name, before = _OUTSIDE, 0
        if step is not None:
            name = step.name
            before = sum(other.name == name for other in steps[: steps.index(step)])
        return ids.trace_id(self._run_id, 0, name, before).to_bytes(16, "big")

    def recorded(self) -> Iterator[int]:
        sections = self._sections
        for trace in self.traces:
            same = 0 if sections is None else (sections.trace_id == np.frombuffer(trace, np.uint8))
            yield int(np.all(same, axis=1).sum()) if sections is not None else 0

    def phases(self) -> list[str]:
        known = {}
        if self._window is not None:
            known = {step.trace: step.phase for step in self._window.steps}
        return [known.get(trace.hex(), "") for trace in self.traces]
