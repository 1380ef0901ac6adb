"""Start, end and cancellation of single steps, with their numbers and payloads.

A step is the root of a trace: its BEGIN row precedes all rows inside it. ``n`` counts the steps
that this process started in a phase and determines the trace id; ``number`` is the program's count.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.journal.layout import Flag, Kind
from otel_mlperf.recorder.core.faults import internal_error, try_again
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.program_callbacks import STEP_BEGIN, STEP_END
from otel_mlperf.recorder.sections.parents import OpenStep
from otel_mlperf.recorder.sections.section_context import (
    CURRENT,
    Extra,
    aggregate_around,
    extra_of,
    root_of,
)
from otel_mlperf.recorder.stepping.abandoned_loops import AbandonedLoops

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.journal.journal_writer import Journal, Pieces
    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.sections.parents import Parents
    from otel_mlperf.recorder.sections.section_cases import RecordedSections
    from otel_mlperf.recorder.sections.section_context import SectionContext


Added = tuple["int | None", "int | None", int, "int | None", "int | None", "int | None"]
"""Totals of a step: samples, tokens, excluded time in ns, epoch, FLOPs, elements."""


class StepPayload:
    """Encoder of step payloads for one journal, which caches the last payload."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._last: tuple[Added | None, Pieces | None] = (None, None)
        """Totals of the previous step, and its encoded payload."""

    def pieces_of(self, added: Added) -> Pieces | None:
        """Return a step's encoded payload.

        The result is empty if there are no totals, and None if they cannot be stored.
        """
        # The comparison saves encoding (4 µs), because most batches have the same size.
        if added != self._last[0]:
            content = payload_of(*added)
            pieces = self._journal.pieces(content) if content else ()
            self._last = added, (pieces or None) if content else ()
        return self._last[1]


def payload_of(
    samples: int | None,
    tokens: int | None,
    excluded: int,
    epoch: int | None,
    flops: int | None,
    elements: int | None,
) -> dict[str, Any]:
    """Return the payload with the totals of a step; missing totals are omitted."""
    counts = {"n": samples, "t": tokens, "x": excluded or None, "m": elements}
    content: dict[str, Any] = {key: value for key, value in counts.items() if value is not None}
    if flops is not None and flops >= 0:
        content["f"] = flops
    if epoch is not None:
        content["a"] = {names.TRAINING_EPOCH: epoch}
    return content


_MASK = (1 << 64) - 1
_ATTEND_NS = 100_000_000
_PROFILED = int(Flag.PROFILED)


class _Count:
    __slots__ = ("entry", "n", "number")

    def __init__(self, entry: int) -> None:
        self.entry, self.n, self.number = entry, 0, 0


class OneStep:
    """Operations on single steps of one recording: start, end and cancellation."""

    def __init__(self, recording: Recording, sections: RecordedSections, parents: Parents) -> None:
        self._recording, self._sections, self._parents = recording, sections, parents
        # Attributes are looked up here once, not in each step.
        self._registry, self._next_id = recording.registry, recording.next_id
        self._slow, self._watched = recording.registry.slow, sections.watched
        self._new, self._binding, self._latest = sections.new, sections.binding, parents.latest
        self.open = parents.steps
        self.epoch: int | None = None
        self.abandoned = AbandonedLoops(sections)
        self.flags = 0
        """Flags for the rows of steps that end now."""
        self._profilers: set[int] = set()
        self.before_step: list[Callable[[], None]] = []
        """Functions called before a step starts, outside its duration."""
        self.after_step: list[Callable[[OpenStep], None]] = []
        """Functions called with a step after its row is written, outside its duration."""
        self.busy_ns = 0
        """End of the recorder's last work between steps: no inferred step starts earlier."""
        self.at_first_step: list[Callable[[str, SectionContext], None]] = []
        """Functions called with a phase and its first step, after the step has started."""
        self.now_and_then: list[Callable[[int], None]] = []
        """Functions called with the start time of a step, at most ten times a second."""
        self.peaks: list[Callable[[], dict[str, int]]] = []
        """Functions that return memory peaks so far, as attributes of an ending epoch."""
        self.due_ns = 0
        """Monotonic time from which ``now_and_then`` is called again."""
        self._counts: dict[str, _Count] = {}
        self._link: tuple[SectionContext | None, int] = (None, recording.meta.run_span)
        """The section around the last step, and the span id that the step was linked to."""
        self._pieces_of = StepPayload(recording.journal).pieces_of

    # -- numbers --------------------------------------------------------------------------------

    epochs_left = 0
    """Number of remaining epochs of the program, including the open one; 0: unknown."""

    def next_number(self, phase: str = names.TRAIN) -> int:
        """Return the number of the next step of ``phase``."""
        return self._count(phase).number

    def set_next_number(self, number: int, phase: str = names.TRAIN) -> None:
        """Set the number of the next step of ``phase``."""
        self._count(phase).number = number

    def _count(self, phase: str) -> _Count:
        count = self._counts.get(phase)
        if count is None:
            name = names.step_span(phase)
            entry = self._registry.register(name, names.STEP, phase)
            self._registry.watch(entry, names.STEP)
            count = self._counts.setdefault(phase, _Count(entry))
        return count

    def note_profiler(self, profiler: object, *, is_on: bool) -> None:
        """Register that a profiler is on or off, to flag the steps that end while one is on."""
        (self._profilers.add if is_on else self._profilers.discard)(id(profiler))
        self.flags = _PROFILED if self._profilers else 0

    # -- start and end --------------------------------------------------------------------------

    def _open(  # noqa: C901 - each call would cost
        self,
        number: int | None,
        around: SectionContext | None,
        outer: OpenStep | None,
        track: int,
        above: Any,
        at_ns: int = 0,
    ) -> OpenStep:
        """Open a step in the context ``above``; if interrupted, undo everything.

        ``number`` is the program's number (None: the next one). ``around`` and ``outer`` are the
        enclosing section and step. ``at_ns`` is the monotonic start time (0: now).
        """
        phase = self._registry.phase
        for prepare in self.before_step:
            prepare()
        if at_ns:
            at_ns = max(at_ns, self.busy_ns)
        count = self._counts.get(phase) or self._count(phase)
        given = None if number is None else int(number)
        # Consecutive steps of a loop have the same enclosing section, and therefore the same link.
        known, link = self._link
        if around is not known or outer is not None:
            link = self._find_link(around, outer)
        section = self._new()
        section.entry = count.entry
        section.sid = sid = self._next_id()
        entry = section.entry
        section.at, section.extra = 0, self._watched(entry) if entry in self._slow else None
        step = OpenStep(section, phase, 0, 0, around, link)
        step.epoch = self.epoch
        try:
            # Registered before its section is current: code that gets the section as parent must
            # find the step.
            self.open[sid] = step
            # Counted before it is opened, without a call in between: a signal handler that opens a
            # step must get the next n, so that two steps never share a trace id.
            step.n = n = count.n
            step.number = number = count.number if given is None else given
            count.n, count.number = n + 1, number + 1
            self._latest.append((sid, phase, n))
            self._binding.begin_step(section, track, link, n & _MASK, number & _MASK, at_ns)
            if above is not around:
                _note_aggregate(section, above, track)
            if not n:
                for call in self.at_first_step:
                    call(phase, section)
            if section.t0 >= self.due_ns:
                self._attend(section.t0)
            if STEP_BEGIN.all or STEP_END.all:
                self._notify_start(step)
        except BaseException as problem:
            if problem.__class__ is RecursionError:  # see ``BoundSection.__exit__``
                sections = self._sections
                sections.unfinished = self._undo_start_late, (step, above), sections.unfinished
            try_again(self._undo_start, step, above)
            raise
        return step

    def _undo_start_late(self, _: int, step: OpenStep, above: Any) -> None:
        self._undo_start(step, above)
        self._leave_cancelled(step)

    def _undo_start(self, step: OpenStep, above: Any) -> None:
        self.cancel(step)
        if CURRENT.get() is step.section:
            CURRENT.set(above)  # interrupted before its token was stored

    def _notify_start(self, step: OpenStep) -> None:
        """Call the callbacks of a step's start; if one raises Ctrl-C, the step is cancelled."""
        step.is_told = True
        extra_of(step.section)  # makes its end take the slow path: the fast path needs no test
        STEP_BEGIN.tell(step.phase, step.number)

    def _attend(self, now: int) -> None:
        self.due_ns = now + _ATTEND_NS
        for call in self.now_and_then:
            try:
                call(now)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

    def _find_link(self, around: SectionContext | None, outer: OpenStep | None) -> int:
        if around is not None and around.extra.__class__ is not Extra:
            extra_of(around)  # its exit then takes the slow path, which ends steps inside
        if outer is not None:
            return outer.link
        run = self._recording.meta.run_span
        link = around.sid if around is not None and root_of(around) == run else run
        self._link = around, link
        return link

    @at_once
    def end(self, step: OpenStep, t1: int = 0, error: list[str] | None = None) -> None:
        """End an open step and write its totals, exactly once despite interrupts.

        ``t1`` is the monotonic end time (0: now), ``error`` the exception by which the step failed.
        """
        try:
            section = step.section
            # The loop, enclosing sections and the run may all try to end the step: the caller that
            # removes it from ``open`` ends it.
            if self.open.pop(section.sid, None) is None:
                self._sections.leave(section)
                return
            t1 = t1 or time.monotonic_ns()
            if self.open:
                self.end_inside(section, t1, error)
            pieces = self._pieces_of(
                (step.samples, step.tokens, step.excluded, step.epoch, step.flops, step.elements)
            )
            if error is None and section.extra is None and pieces is not None:
                self._binding.end_step(section, t1, self.flags, pieces)
            else:
                self._end_slowly(step, t1, error)
        except BaseException:
            try_again(self.end_rest, step, t1, error)
            raise
        for call in self.after_step:
            call(step)

    def end_rest(self, step: OpenStep, t1: int, error: list[str] | None) -> None:
        """Complete an interrupted ``end``, without calling callbacks; arguments: see ``end``."""
        section = step.section
        self.open.pop(section.sid, None)
        if section.at:
            t1 = t1 or time.monotonic_ns()
            self.end_inside(section, t1, error)
            self._close(step, t1, error)
        self._sections.leave(section)

    def _end_slowly(self, step: OpenStep, t1: int, error: list[str] | None) -> None:
        try:
            extra = step.section.extra
            if extra is not None and (extra.usage is not None or extra.stamp is not None):
                self._end_watching(step, extra, t1)  # first: callbacks are not part of the step
            if step.is_told:
                self._notify_end(step)
        finally:  # the step ends even if Ctrl-C interrupts a callback
            self._close(step, t1, error)

    def _end_watching(self, step: OpenStep, extra: Extra, t1: int) -> None:
        began_ns = time.monotonic_ns()
        if extra.usage is not None:
            extra.usage.end()
        if extra.stamp is not None and self._sections.stamps is not None:
            stamp, extra.stamp = extra.stamp, None
            extra.flags |= self._sections.stamps.end_step(stamp, step, t1)
        self._sections.count_watching(began_ns)

    def _close(self, step: OpenStep, t1: int, error: list[str] | None) -> None:
        section = step.section
        content = payload_of(
            step.samples, step.tokens, step.excluded, step.epoch, step.flops, step.elements
        )
        if step.added_up is not None and (shares := step.added_up.told()):
            content["g"] = shares
        self._sections.leave(section)
        self._sections.close(section, t1, error, more_flags=self.flags, **content)

    def _notify_end(self, step: OpenStep) -> None:
        step.is_told = False  # a callback may end the run, and with it this step
        sid = step.section.sid
        self.open[sid] = step  # values that callbacks log belong to the step
        try:
            STEP_END.tell(step.phase, step.number)
        finally:
            self.open.pop(sid, None)

    @at_once
    def cancel(self, step: OpenStep) -> None:
        """Cancel an open step: its number is reused, and its time counts as outside steps."""
        try:
            section = step.section
            if self.open.pop(section.sid, None) is None:
                return
            count = self._count(step.phase)
            # Only the latest number can be reused: the rows of later steps contain theirs.
            if count.n == step.n + 1:
                count.n = step.n
            if count.number == step.number + 1:
                count.number = step.number
            if step.added_up is not None:
                step.added_up.move_outside()
            self._leave_cancelled(step)
        except BaseException:
            try_again(self._leave_cancelled, step)
            raise

    def _leave_cancelled(self, step: OpenStep) -> None:
        self.open.pop(step.section.sid, None)
        self._sections.leave(step.section)
        self.cancel_section(step.section)

    def cancel_section(self, section: SectionContext) -> None:
        """Cancel an open section; the parent of the section becomes the parent of its children."""
        # The duration still counts as covered time of an enclosing aggregated section.
        within = section.extra.within if section.extra is not None else None
        if section.extra is not None:
            self._sections.drop_stamp(section.extra)
        section.extra = None
        if within is not None:
            extra_of(section).within = within
        self._sections.close(section, time.monotonic_ns(), kind=Kind.CANCEL)

    def end_inside(self, section: SectionContext, t1: int, error: list[str] | None) -> None:
        """End the open steps inside a section that ends at ``t1``; ``error`` is None on success."""
        for step in [s for s in list(self.open.values()) if s.around is section]:
            if self.abandoned.settle_one(step.section, error):
                continue
            if step.whole_ns:
                self.end(step, step.whole_ns)
            elif step.is_marked:
                self.cancel(step)
            else:
                self.end(step, t1, error)


def _note_aggregate(section: SectionContext, above: Any, track: int) -> None:
    within = aggregate_around(above, track)
    if within is not None:
        extra_of(section).within = within
