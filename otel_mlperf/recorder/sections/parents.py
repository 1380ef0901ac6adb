"""Parent, trace and track of sections, and the open steps.

``section`` itself handles the common case, a parent on the same track. This module handles all
other cases: contexts of other libraries, finished parents, threads, tasks, forks, a missing
context. It also contains the open steps, which determine the traces of the sections inside.
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
    TraceContext,
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

    from opentelemetry.trace import SpanContext

    from otel_mlperf.recorder.core.recording import Recording

_REMEMBERED = 2048
_MASK = (1 << 64) - 1
_SAMPLED: Final = 1


class OtherParent(NamedTuple):
    """Parent span that another library or process created."""

    span_id: int
    root: int
    """Key of its trace in rows."""
    is_remote: bool


class AddedUp(Protocol):
    """Shares of aggregated sections in an open step."""

    def watch(self, cell: Any, memo: Any) -> None:
        """Attribute later calls in ``cell`` to the step, whose end clears the cache ``memo``."""

    def told(self) -> list[list[int]]:
        """Return the step's share of each cell, for the step's payload."""

    def move_outside(self) -> None:
        """Attribute the shares of a cancelled step to the time outside steps."""


class OpenStep:
    """An open step, with totals that are accumulated until its end."""

    # Class-level defaults: most steps have no values of their own.
    samples: int | None = None
    tokens: int | None = None
    elements: int | None = None
    """Sum over the step's batches of the elements of the largest tensor."""
    flops: int | None = None
    """FLOPs of all models in the step; negative: unknown for at least one model."""
    excluded = 0
    """Time of phases and checkpoints inside the step, which its duration excludes, in ns."""
    crossed: list[str] | None = None
    """Type, message and stack of the last exception that left a section inside the step."""
    is_marked = False
    """Whether the start of the next step ends this one: for ``mark_step`` and inferred steps."""
    is_inferred = False
    """Whether the step is inferred; an explicit step cancels it."""
    whole_ns = 0
    """Monotonic time at which an inferred step was complete and could end; 0: not complete yet."""
    is_told = False
    """Whether callbacks were notified of the step's start, and must be notified of its end."""
    added_up: AddedUp | None = None
    """Shares of aggregated sections in the step."""
    latest: list[OpenStep] | None = None
    """List with the open step of a series of ``mark_step`` calls; its steps share the list."""

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
        """The enclosing section, at whose end the step ends at the latest."""
        self.link = link
        """Span id of the section of the run's trace that the step's trace is linked to."""


class Parents:
    """Open steps and outer sections of one recording, and assignment of parents to sections."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._home = get_ident()
        """Ident of the thread that started the run, whose sections without context belong to it."""
        self._foreign: dict[int, TraceContext] = {}
        """Latest trace context of foreign traces, by their keys in rows."""
        self._foreign_keys: dict[int, int] = {}
        """Keys of foreign traces in rows, by trace id."""
        self.outer: list[SectionContext] = []
        """Open run, epochs and phases; the last one is the parent of sections without a context."""
        self.steps: dict[int, OpenStep] = {}
        """Open steps by span id, in the order in which they started."""
        self.latest: deque[tuple[int, str, int]] = deque(maxlen=_REMEMBERED)
        """Span id, phase and n of recently started steps, the oldest first."""

    # -- steps ----------------------------------------------------------------------------------

    def current_step(self, phase: str) -> OpenStep | None:
        """Return the open step of ``phase`` that started last, or None."""
        steps = reversed(list(self.steps.values()))  # copied, because other threads open steps, too
        return next((step for step in steps if step.phase == phase), None)

    def step_around(self, section: SectionContext | None) -> OpenStep | None:
        """Return the open step that a section belongs to, or None."""
        if section is None:
            return None
        return self.steps.get(root_of(section))

    def _step_of_root(self, root: int) -> tuple[str, int] | None:
        """Return phase and n of the open or recent step with span id ``root``; None if unknown."""
        step = self.steps.get(root)
        if step is not None:
            return step.phase, step.n
        begun = reversed(self.latest.copy())
        return next(((phase, n) for sid, phase, n in begun if sid == root), None)

    # -- sections -------------------------------------------------------------------------------

    def place(
        self, above: Any, sid: int, section: SectionContext | None = None
    ) -> tuple[bytes, int]:
        """Return the packed parents and the track of a section without a parent on its track.

        Args:
            above: the current context.
            sid: span id of the section.
            section: the section, if it is to be updated with details of its parent.
        """
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
        """Return the open section or foreign span that encloses a context, or None.

        Args:
            above: the context.
            track: the caller's track, which the result need not share.
        """
        # A loop instead of recursion: contexts may be nested 10,000 deep.
        while isinstance(above, SectionContext):
            if above.adds_up:
                pass  # an aggregated section is no parent: continue with the one around it
            elif above.recording is self._recording:
                if above.at:
                    return above
                later = successor_of(above)
                if later is not None:
                    return later
            elif self._recording.meta.is_child:
                # Inherited through a fork: the section is in the parent process's journal.
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
        """Resolve a context that another library created, perhaps derived from a section."""
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
        foreign = span.get_span_context()
        if not foreign.is_valid:
            return inside
        if (
            isinstance(inside, SectionContext)
            and self.trace_of(inside).trace_id == foreign.trace_id
        ):
            return OtherParent(foreign.span_id, root_of(inside), foreign.is_remote)
        return OtherParent(foreign.span_id, self._foreign_root(foreign), foreign.is_remote)

    def _foreign_root(self, foreign: SpanContext) -> int:
        trace_id = foreign.trace_id
        key = self._foreign_keys.get(trace_id)
        if key is None:
            # A server takes part in many traces: without a limit the table would grow for ever.
            while len(self._foreign_keys) >= _REMEMBERED:
                self._forget_foreign()
            key = self._foreign_keys[trace_id] = self._recording.next_id()
            if foreign.trace_state:
                self._recording.journal.payload(key, {"c": foreign.trace_state.to_header()})
            is_unsampled = int(not foreign.trace_flags & _SAMPLED)
            self._recording.journal.put(
                trace_id >> 64, trace_id & _MASK, key, is_unsampled, 0, 0, 0,
                Kind.FOREIGN, Word.LOST_FRAME,
            )  # fmt: skip
        self._foreign[key] = TraceContext(trace_id, foreign.trace_flags, foreign.trace_state)
        return key

    def is_foreign(self, root: int) -> bool:
        """Return whether ``root`` is the key of a trace of another process or library."""
        return root in self._foreign

    def _forget_foreign(self) -> None:
        oldest = self._foreign_keys.pop(next(iter(self._foreign_keys)), None)
        self._foreign.pop(oldest or 0, None)

    def section_around(self, above: Any, track: int) -> SectionContext | None:
        """Return the open section around a context, ignoring foreign spans, or None."""
        around = self.resolve(above, track)
        if isinstance(around, SectionContext) or around is None:
            return around
        mine = (one for one in sections_above(above) if one.recording is self._recording)
        return next((one for one in mine if one.at and not one.adds_up), None)

    def parent_of(self, section: SectionContext) -> SectionContext | None:
        """Return the parent of a section; None if the parent is not a section of this process."""
        parent = PARENTS.unpack(section.chunk)[0]
        above = (one for one in sections_above(context_above(section)) if one.sid == parent)
        return next(above, None) or next((one for one in self.outer if one.sid == parent), None)

    def surrounding(self) -> tuple[SectionContext | None, int]:
        """Return the open section around the caller, or None, and the caller's track."""
        track = self._recording.tracks.current()
        around = self.resolve(CURRENT.get(), track)
        return (around if isinstance(around, SectionContext) else None), track

    def trace_of(self, section: SectionContext) -> TraceContext:
        """Return the section's trace context.

        State and flags of a foreign trace stay unchanged, except that a sampler, if there is one,
        decides on the sampled flag.
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
        """Return the section's trace context; settings determine whether a step is sampled."""
        root, meta, config = root_of(section), self._recording.meta, self._recording.config
        if root == meta.run_span:
            return TraceContext(ids.run_trace_id(meta.run_id, meta.restart), _SAMPLED)
        step = self._step_of_root(root)
        if step is not None:
            phase, n = step
            is_sampled = n < config.trace_first or n % config.trace_every == 0
            trace_id = ids.trace_id(meta.run_id, meta.restart, phase, n)
            return TraceContext(trace_id, _SAMPLED if is_sampled else 0)
        foreign = self._foreign.get(root)
        return foreign or TraceContext(ids.lone_trace_id(meta.run_id, root), _SAMPLED)


def successor_of(section: SectionContext) -> SectionContext | None:
    """Return an open step to use as parent instead of a finished section, or None.

    The result is the step that the section interrupted. If the section or that step is a finished
    step of a series of ``mark_step`` calls, the result is the current step of the series.
    """
    extra = section.extra
    step = extra.step if extra is not None else None
    if step is not None:
        if step.section.at:
            return step.section  # type: ignore[no-any-return]
        extra = step.section.extra
    latest = extra.latest if extra is not None else None
    return latest[0].section if latest and latest[0].section.at else None
