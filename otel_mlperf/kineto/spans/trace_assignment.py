"""Trace assignment: the trace, parent span and ids with which each event is sent.

A step is a trace. In a run it is the recorded step's trace, and events without a parent in the
profile get the recorded section that was open as their parent. Otherwise each step that the
profile shows is a trace by itself, and everything outside of steps is one more trace. If traces
are put into one run, the same step of all ranks is the same trace. A stack of Python functions is
not a parent in what is sent: its events are rolled up under what is above them.

Ids follow from the file's digest and the byte position of the event in it, so that two imports of
a file are one. Within a file two ids are never equal and none is zero: the mixing is one to one,
and no position is mapped to what mixes to zero.
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
"""Number of bits for the position of an event."""
_ROLL_UP: Final = np.uint64(1 << _PLACES)
_NEVER: Final = np.uint64(1 << 62)
"""Set in every base and in no position: their difference is never zero."""


def span_ids(digest: str, position: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """Return the ids of the events at these byte offsets of the file with that digest."""
    return _mixed(position.astype(np.uint64) ^ _base(digest))


def roll_up_ids(digest: str, position: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """Return the ids of roll-ups by the byte offset of their first event; never an event's id."""
    return _mixed((position.astype(np.uint64) | _ROLL_UP) ^ _base(digest))


def trace_id(digest: str, part: str) -> bytes:
    """Return the 16 bytes of a trace id for a file without a run, by the content of the trace."""
    return blake2b(f"{digest}\0{part}".encode(), digest_size=16).digest()


def _base(digest: str) -> np.uint64:
    half = blake2b(digest.encode(), digest_size=8).digest()
    # A bit that no position has, so that base xor position is never zero, nor is its mixture.
    return np.uint64(int.from_bytes(half, "big")) | _NEVER


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of splitmix64: one to one, and zero only for zero."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@dataclass(frozen=True)
class Assignment:
    """Assignment of each event to a trace and a parent span."""

    forest: Forest
    """Parents without what is always rolled up, and without what a recorded section shows already.
    """
    anchor: NDArray[np.signedinteger[Any]]
    """For each event the anchor of the root above it: an index into the next two."""
    anchor_span: NDArray[np.uint64]
    """The span above the roots of that anchor; 0: none."""
    anchor_trace: NDArray[np.signedinteger[Any]]
    """Index into ``traces``."""
    traces: list[bytes]
    """16 bytes each."""
    recorded: list[int]
    """For each trace the number of recorded sections from this process."""
    phases: list[str]
    """For each trace the phase of its step; empty if it is not a step."""
    hidden: NDArray[np.bool_]
    """Events that a recorded section shows already."""
    never: NDArray[np.bool_]
    """Events that are rolled up whatever the budget."""

    @cached_property
    def trace(self) -> NDArray[np.signedinteger[Any]]:
        """For each event the index of its trace."""
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
    """Derive the assignment of all events.

    Args:
        trace: the events.
        links: the result of ``link`` for them.
        sections: the recorded sections that ``links`` refers to.
        window: window of a run; without it the file is converted on its own.
        run_id: the run that a file without a window is put into.
        whole: whether Python functions are spans as well.
    """
    hidden = links.place == Place.TWIN
    python = find_roles(trace) == Role.PYTHON
    never = np.zeros(len(hidden), bool) if whole else python & ~hidden
    # Left out of the chain, not cut off: the parent of events under a frame of Python is what is
    # above the frame.
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
    """Return each event's root, and each event's step and recorded section as a root.

    Changes ``parent``: the annotation of a step that was not recorded becomes a root, and the
    parent of events on other threads in its time.
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
    """Return one number for a root's anchor: a section (from 0 up), or a step (from -2 down)."""
    # The number of each step itself; the last item is for NONE, that is, no step.
    of_step = [
        trace_step.section if trace_step.section != NONE else -2 - at
        for at, trace_step in enumerate(steps)
    ]
    keys: NDArray[np.int32] = np.array([*of_step, NONE], np.int32)[step]
    return np.where(section != NONE, section, keys)


class _Anchors:
    """Collection of the traces and of the anchor spans of roots in them."""

    def __init__(
        self, digest: str, sections: Sections | None, window: Window | None, run_id: str
    ) -> None:
        self._digest, self._sections, self._window = digest, sections, window
        self._run_id = run_id
        self.traces: dict[bytes, int] = {}
        self.spans: list[int] = []
        self.of_trace: list[int] = []

    def at(self, key: int, steps: list[TraceStep]) -> int:
        """Return the index of the anchor for a key of ``_keys``."""
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
        """Return the trace of a step, or of outside steps, that all ranks of the run share."""
        name, before = _OUTSIDE, 0
        if step is not None:
            name = step.name
            before = sum(other.name == name for other in steps[: steps.index(step)])
        return ids.trace_id(self._run_id, 0, name, before).to_bytes(16, "big")

    def recorded(self) -> Iterator[int]:
        """Yield the number of recorded sections of each trace."""
        sections = self._sections
        for trace in self.traces:
            same = 0 if sections is None else (sections.trace_id == np.frombuffer(trace, np.uint8))
            yield int(np.all(same, axis=1).sum()) if sections is not None else 0

    def phases(self) -> list[str]:
        """Return the phase of each trace's step."""
        known = {}
        if self._window is not None:
            known = {step.trace: step.phase for step in self._window.steps}
        return [known.get(trace.hex(), "") for trace in self.traces]
