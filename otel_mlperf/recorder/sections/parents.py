"""Placement of sections: their parent, trace and track, and the open steps.

The common case, an enclosing section on the same track, is decided in ``section``. This module
handles the rest: contexts of other libraries, finished parents, threads, tasks, forks, no context
at all. It also keeps the open steps, because a section's trace is that of its step.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from opentelemetry.trace.propagation import _SPAN_KEY

from otel_mlperf import ids
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.recorder.core.thread_ident import get_ident
from otel_mlperf.recorder.sections.section_context import (
    CURRENT,
    PARENTS,
    SECTION_KEY,
    SectionContext,
    aggregate_around,
    context_above,
    extra_of,
    inner_of,
    root_of,
    sections_above,
)
from otel_mlperf.recorder.sections.section_span import SectionSpan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import SpanContext, TraceState

    from otel_mlperf.recorder.core.recording import Recording

_REMEMBERED = 2048
_MASK = (1 << 64) - 1
_SAMPLED: Final = 1


class TraceContext(NamedTuple):
    """Trace data that goes into the headers of requests which are made in the trace."""

    trace_id: int
    flags: int
    """Flags of W3C Trace Context: bit 0 is set where the trace is sampled here or by its caller."""
    state: TraceState | None = None
    """State of the trace's originator, passed on unchanged."""


class OtherParent(NamedTuple):
    """A parent span of another library or process."""

    span_id: int
    root: int
    """The key of its trace in rows."""
    is_remote: bool


class AddedUp(Protocol):
    """Aggregated sections inside a step."""

    def watch(self, cell: Any, memo: Any) -> None:
        """Attribute further growth of a cell to the step."""

    def told(self) -> list[list[int]]:
        """Return the share of each cell, for the step's payload."""

    def move_outside(self) -> None:
        """Move the shares outside the step, which was cancelled."""


class OpenStep:
    """An open step, and the totals that are added up in it."""

    # Class-level defaults: most steps have no values of their own.
    samples: int | None = None
    tokens: int | None = None
    elements: int | None = None
    """Elements of the largest tensor of each of its batches."""
    flops: int | None = None
    """Floating point operations of its models; below 0: some are unknown."""
    excluded = 0
    """Time of phases and checkpoints inside, ns."""
    crossed: list[str] | None = None
    """The last exception that crossed a section inside the step."""
    is_marked = False
    """Whether ``mark_step`` opened it: it ends only when the next one starts."""
    is_inferred = False
    """Whether it is inferred: an explicit step cancels it."""
    whole_ns = 0
    """Of an inferred step: when all that makes it a step had happened, so that it may end there."""
    is_told = False
    """Whether callbacks of the program were notified of its start: then they are of its end."""
    added_up: AddedUp | None = None
    """Shares of aggregated sections in the step."""
    latest: list[OpenStep] | None = None
    """The open step of those that ``mark_step`` opened one after the other."""

    def __init__(
        self,
        section: SectionContext,
        phase: str,
        n: int,
        number: int,
        around: SectionContext | None,
        link: int,
    ) -> None:
        self.section, self.phase, self.n, self.number = section, phase, n, number
        self.epoch: int | None = None
        self.around = around
        """The section that the step ends with at the latest."""
        self.link = link
        """The section of the run's trace that the step belongs to."""


class Parents:
    """Open sections around the callers of one recording, and placement of new sections."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._home = get_ident()
        """The thread in which the run was started: there everything belongs to the run."""
        self._foreign: dict[int, TraceContext] = {}
        """Latest state of foreign traces, by the keys that represent them in rows."""
        self._foreign_keys: dict[int, int] = {}
        """Those keys by trace id."""
        self.outer: list[SectionContext] = []
        """Open run, epochs and phases: sections without a context belong to the last one."""
        self.steps: dict[int, OpenStep] = {}
        """Open steps by span id, in the order in which they started."""
        self.latest: deque[tuple[int, str, int]] = deque(maxlen=_REMEMBERED)
        """Span id, phase and n of the latest steps."""

    # -- steps ----------------------------------------------------------------------------------

    def current_step(self, phase: str) -> OpenStep | None:
        """Return the open step of ``phase`` that started last."""
        steps = reversed(list(self.steps.values()))  # copied first: other threads open steps, too
        return next((step for step in steps if step.phase == phase), None)

    def step_around(self, section: SectionContext | None) -> OpenStep | None:
        """Return the step that an open section belongs to."""
        if section is None:
            return None
        return self.steps.get(root_of(section))

    def _step_of_root(self, root: int) -> tuple[str, int] | None:
        """Return phase and n of the step with that span id; None if it is no step, or old."""
        step = self.steps.get(root)
        if step is not None:
            return step.phase, step.n
        begun = reversed(self.latest.copy())
        return next(((phase, n) for sid, phase, n in begun if sid == root), None)

    # -- sections -------------------------------------------------------------------------------

    def place(
        self, above: Any, sid: int, section: SectionContext | None = None
    ) -> tuple[bytes, int]:
        """Return parents and track of a section that is not simply in the enclosing section."""
        track = self._recording.tracks.current()
        within = aggregate_around(above, track)
        if within is not None and section is not None:
            extra_of(section).within = within
        around = self.resolve(above, track)
        if isinstance(around, SectionContext):
            if around.track == track:
                return around.inner or inner_of(around), track
            return PARENTS.pack(around.sid, root_of(around), track), track
        if around is not None:
            if around.is_remote and section is not None:
                extra_of(section).is_parent_remote = True
            return PARENTS.pack(around.span_id, around.root, track), track
        return PARENTS.pack(0, sid, track), track

    def resolve(self, above: Any, track: int) -> SectionContext | OtherParent | None:
        """Return the enclosing open section, or the foreign span around.

        None: neither exists; the section is a trace of its own.
        """
        # A loop, no recursion: contexts may be 10,000 deep.
        while isinstance(above, SectionContext):
            if above.adds_up:
                pass  # no parent: sections inside belong to the section around it
            elif above.recording is self._recording:
                if above.at:
                    return above
                later = successor_of(above)
                if later is not None:
                    return later
            elif self._recording.meta.is_child:
                # Inherited through a fork: its journal belongs to the parent process.
                run = self._recording.meta.run_span
                return OtherParent(run, run, is_remote=False)
            above = context_above(above)
        around = self._resolve_context(above, track) if above else None
        if around is None and self.outer and get_ident() == self._home:
            return self.outer[-1]
        return around

    def _resolve_context(
        self, context: Mapping[str, Any], track: int
    ) -> SectionContext | OtherParent | None:
        """Resolve a context that another library made, perhaps from one of the recorder's."""
        ours = context.get(SECTION_KEY)
        inside = self.resolve(ours, track) if ours is not None else None
        span = context.get(_SPAN_KEY)
        if span is None:
            return inside
        if isinstance(span, SectionSpan):
            section = span.section
            if section.recording is self._recording and section.at:
                return section
            return inside
        theirs = span.get_span_context()
        if not theirs.is_valid:
            return inside
        if isinstance(inside, SectionContext) and self.trace_of(inside).trace_id == theirs.trace_id:
            return OtherParent(theirs.span_id, root_of(inside), theirs.is_remote)
        return OtherParent(theirs.span_id, self._foreign_root(theirs), theirs.is_remote)

    def _foreign_root(self, theirs: SpanContext) -> int:
        trace_id = theirs.trace_id
        key = self._foreign_keys.get(trace_id)
        if key is None:
            # A server takes part in many traces: without a limit this would grow for ever.
            while len(self._foreign_keys) >= _REMEMBERED:
                self._forget_foreign()
            key = self._foreign_keys[trace_id] = self._recording.next_id()
            if theirs.trace_state:
                self._recording.journal.payload(key, {"c": theirs.trace_state.to_header()})
            is_unsampled = int(not theirs.trace_flags & _SAMPLED)
            self._recording.journal.put(
                trace_id >> 64, trace_id & _MASK, key, is_unsampled, 0, 0, 0,
                Kind.FOREIGN, Word.LOST_FRAME,
            )  # fmt: skip
        self._foreign[key] = TraceContext(trace_id, theirs.trace_flags, theirs.trace_state)
        return key

    def is_foreign(self, root: int) -> bool:
        """Return whether the trace of a section belongs to another process or library."""
        return root in self._foreign

    def _forget_foreign(self) -> None:
        oldest = self._foreign_keys.pop(next(iter(self._foreign_keys)), None)
        self._foreign.pop(oldest or 0, None)

    def section_around(self, above: Any, track: int) -> SectionContext | None:
        """Return the recorder's open section that a context is in, also through foreign spans."""
        around = self.resolve(above, track)
        if isinstance(around, SectionContext) or around is None:
            return around
        mine = (one for one in sections_above(above) if one.recording is self._recording)
        return next((one for one in mine if one.at and not one.adds_up), None)

    def parent_of(self, section: SectionContext) -> SectionContext | None:
        """Return the recorder's section that is another section's parent, if it can be reached."""
        parent = PARENTS.unpack(section.chunk)[0]
        above = (one for one in sections_above(context_above(section)) if one.sid == parent)
        return next(above, None) or next((one for one in self.outer if one.sid == parent), None)

    def surrounding(self) -> tuple[SectionContext | None, int]:
        """Return the recorder's open section that the caller is in, and its track."""
        track = self._recording.tracks.current()
        around = self.resolve(CURRENT.get(), track)
        return (around if isinstance(around, SectionContext) else None), track

    def trace_of(self, section: SectionContext) -> TraceContext:
        """Return the section's trace; a caller's state is passed on unchanged.

        So are its flags, unless a sampler decides about the trace.
        """
        trace, sampler = self._selected_trace(section), self._recording.sampler
        if sampler is None:
            return trace
        caller_flags = trace.flags if self.is_foreign(root_of(section)) else None
        sampled = sampler.samples(trace.trace_id, caller_flags)
        if caller_flags is None:
            return trace._replace(flags=trace.flags if sampled else 0)
        return trace._replace(flags=caller_flags & ~_SAMPLED | sampled)

    def _selected_trace(self, section: SectionContext) -> TraceContext:
        """Return the section's trace, with flags according to the policy of sampled steps."""
        root, meta, config = root_of(section), self._recording.meta, self._recording.config
        if root == meta.run_span:
            return TraceContext(ids.run_trace_id(meta.run_id, meta.restart), _SAMPLED)
        step = self._step_of_root(root)
        if step is not None:
            phase, n = step
            is_kept = n < config.trace_first or n % config.trace_every == 0
            trace_id = ids.trace_id(meta.run_id, meta.restart, phase, n)
            return TraceContext(trace_id, _SAMPLED if is_kept else 0)
        of_others = self._foreign.get(root)
        return of_others or TraceContext(ids.lone_trace_id(meta.run_id, root), _SAMPLED)


def successor_of(section: SectionContext) -> SectionContext | None:
    """Return the open step that a finished section was in, or that followed it if it was a step."""
    extra = section.extra
    step = extra.step if extra is not None else None
    if step is not None:
        if step.section.at:
            return step.section  # type: ignore[no-any-return]
        extra = step.section.extra
    latest = extra.latest if extra is not None else None
    return latest[0].section if latest and latest[0].section.at else None
