"""When does a step begin and end, which number has it, and what if it fails?

A step is a root: it writes a BEGIN row before anything inside it. ``n`` counts the steps that this
process began in a phase and makes the trace id; *number* is what the user counts.

A loop that is left by an exception drops its iterator, which cannot see why. Such a step is kept
as *dropped* until something tells: the exception arrives at an enclosing section (it failed), or
the program goes on (it ended where it was dropped).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_mlperf import names
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.recorder.context import CURRENT, Extra, SectionContext, context_above, extra_of
from otel_mlperf.recorder.section import PARENTS, root_of

if TYPE_CHECKING:
    from otel_mlperf.recorder.section import Section
    from otel_mlperf.recorder.state import Recorder

_MASK = (1 << 64) - 1
_REMEMBERED = 2048


class Step:
    """An open step, and what is added up in it."""

    __slots__ = (
        "around",
        "crossed",
        "epoch",
        "excluded",
        "is_marked",
        "link",
        "n",
        "number",
        "phase",
        "samples",
        "section",
        "successor",
        "tokens",
    )

    def __init__(self, section: Section, phase: str, n: int, number: int) -> None:
        self.section, self.phase, self.n, self.number = section, phase, n, number
        self.link = 0
        """The section of the run's trace that it belongs to."""
        self.around: Section | None = None
        self.samples: int | None = None
        self.tokens: int | None = None
        self.excluded = 0
        """Time of phases and checkpoints inside, ns."""
        self.crossed: list[str] | None = None
        """The exception that crossed a section inside it last."""
        self.epoch: int | None = None
        self.is_marked = False
        """Whether ``mark_step`` opened it: it ends only when the next one begins."""
        self.successor: Step | None = None


End = Callable[[int, "list[str] | None"], None]


class _Dropped(NamedTuple):
    section: Section
    end_ns: int
    end: End


class Stepping:
    """The steps of one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.open: dict[int, Step] = {}
        self.epoch: int | None = None
        self._n: dict[str, int] = {}
        self._entries: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._dropped: list[_Dropped] = []

    # -- numbers --------------------------------------------------------------------------------

    def next_number(self, phase: str = names.TRAIN) -> int:
        """The number that the next step of ``phase`` gets."""
        return self._numbers.get(phase, 0)

    def set_next_number(self, number: int, phase: str = names.TRAIN) -> None:
        """From now on steps of ``phase`` count from ``number``."""
        self._numbers[phase] = number

    def current(self, phase: str) -> Step | None:
        """The step of ``phase`` that began last and is open."""
        return next((s for s in reversed(self.open.values()) if s.phase == phase), None)

    def around(self, section: Section | None) -> Step | None:
        """The step that an open section belongs to."""
        if section is None:
            return None
        return self.open.get(root_of(section))

    # -- begin and end --------------------------------------------------------------------------

    def begin(self, number: int | None = None) -> Step | None:
        """Opens a step of the current phase and makes it current.

        None inside a step of the same phase: that one goes on.
        """
        recorder = self.recorder
        self.settle(None)
        around, track = recorder.places.surrounding()
        step = self.around(around)
        if step is not None and step.phase == recorder.registry.phase:
            return None
        return self._open(number, around, step, track)

    def _open(
        self, number: int | None, around: Section | None, outer: Step | None, track: int
    ) -> Step:
        recorder, phase = self.recorder, self.recorder.registry.phase
        for prepare in recorder.before_step:
            prepare()
        n = self._n.get(phase, 0)
        number = self._numbers.get(phase, 0) if number is None else int(number)
        self._n[phase], self._numbers[phase] = n + 1, number + 1
        section = recorder.make(self._entries.get(phase) or self._entry(phase))
        step = Step(section, phase, n, number)
        step.around, step.link, step.epoch = around, self._link(around, outer), self.epoch
        extra_of(section).step = step
        sid, now = recorder.next_id(), time.monotonic_ns()
        self._remember(sid, step, around)
        recorder.journal.put(
            now, number & _MASK, sid, step.link, n & _MASK, track, section.entry, Kind.BEGIN,
            Word.LOST_FRAME,
        )  # fmt: skip
        recorder.open(section, sid, PARENTS.pack(0, sid, track), track, now)
        recorder.make_current(section)
        words = recorder.journal.words
        words[Word.STEP], words[Word.STEP_TIME] = number & _MASK, now
        for call in recorder.on_step:
            call(now)
        return step

    def _entry(self, phase: str) -> int:
        name = names.step_span(phase)
        self._entries[phase] = self.recorder.registry.entry((name, names.STEP), name, names.STEP)
        return self._entries[phase]

    def _link(self, around: Section | None, outer: Step | None) -> int:
        run = self.recorder.meta.run_span
        if outer is not None:
            return outer.link
        return around.sid if around is not None and root_of(around) == run else run

    def _remember(self, sid: int, step: Step, around: Section | None) -> None:
        roots = self.recorder.places.roots
        roots[sid] = (step.phase, step.n)
        if len(roots) > _REMEMBERED:
            del roots[next(iter(roots))]
        self.open[sid] = step
        if around is not None:
            extra = extra_of(around)
            extra.inside = [s for s in extra.inside or () if s.section.at]
            extra.inside.append(step)

    def end(self, step: Step, t1: int = 0, error: list[str] | None = None) -> None:
        """Ends an open step and writes what was added up in it."""
        section = step.section
        if self.open.pop(section.sid, None) is None:
            self.recorder.leave(section)
            return
        t1 = t1 or time.monotonic_ns()
        self.end_inside(extra_of(section), t1, error)
        content: dict[str, Any] = {}
        if step.samples is not None:
            content["n"] = step.samples
        if step.tokens is not None:
            content["t"] = step.tokens
        if step.excluded:
            content["x"] = step.excluded
        if step.epoch is not None:
            content["a"] = {names.TRAINING_EPOCH: step.epoch}
        self.recorder.leave(section)
        self.recorder.close(section, t1, error, more_flags=self.recorder.step_flags, **content)
        for call in self.recorder.after_step:
            call(step)

    def cancel(self, step: Step) -> None:
        """Takes an open step back: its number is not used up, its time is outside."""
        section, phase = step.section, step.phase
        if self.open.pop(section.sid, None) is None:
            return
        if self._n.get(phase) == step.n + 1:
            self._n[phase] = step.n
        if self._numbers.get(phase) == step.number + 1:
            self._numbers[phase] = step.number
        self.recorder.places.roots.pop(section.sid, None)
        self.recorder.leave(section)
        self.cancel_section(section)

    def cancel_section(self, section: Section) -> None:
        """Takes an open section back."""
        section.extra = None
        self.recorder.close(section, time.monotonic_ns(), kind=Kind.CANCEL)

    # -- steps that nobody ends -----------------------------------------------------------------

    def drop(self, section: Section, end: End, *, is_suspicious: bool) -> None:
        """A loop's iterator is gone: by ``break``, or perhaps by an exception.

        Args:
            section: the step or epoch that the loop was in.
            end: writes it, given its end and the error, if there was one.
            is_suspicious: whether an exception may be on its way.
        """
        now = time.monotonic_ns()
        if not is_suspicious:
            end(now, None)
            return
        if CURRENT.get() is section:
            self.recorder.leave(section)
        self._dropped.append(_Dropped(section, now, end))

    def settle(self, error: list[str] | None) -> None:
        """Ends what was dropped: failed if an exception came out of its loop."""
        while self._dropped:
            dropped = self._dropped.pop(0)
            dropped.end(dropped.end_ns, error)

    def settle_inside(self, section: Section, error: list[str]) -> None:
        """Ends what was dropped inside a section that the exception has reached."""
        for dropped in list(self._dropped):
            if _encloses(section, dropped.section):
                self._dropped.remove(dropped)
                dropped.end(dropped.end_ns, error)

    def ending(self, step: Step) -> End:
        """What ends a dropped step."""
        return lambda t1, error: self.end(step, t1, error or step.crossed)

    def note_crossing(self, section: Section, words: list[str]) -> None:
        """An exception leaves ``section``, and may end a loop whose iterator is blind to it."""
        step = self.open.get(root_of(section))
        if step is not None and step.section is not section:
            step.crossed = words

    def end_inside(self, extra: Extra, t1: int, error: list[str] | None) -> None:
        """What encloses steps ends: so do they."""
        inside, extra.inside = extra.inside, None
        for step in inside or ():
            dropped = next((d for d in self._dropped if d.section is step.section), None)
            if dropped is not None:
                self._dropped.remove(dropped)
                dropped.end(dropped.end_ns, error)
            elif step.is_marked:
                self.cancel(step)
            else:
                self.end(step, t1, error)

    def end_all(self, t1: int, error: list[str] | None) -> None:
        """The run ends: marked steps are cancelled, the others end."""
        self.settle(error)
        for step in reversed(list(self.open.values())):
            if step.is_marked and error is None:
                self.cancel(step)
            else:
                self.end(step, t1, error)

    # -- mark_step ------------------------------------------------------------------------------

    def mark(self, number: int | None) -> bool:
        """Ends the step that the last call opened, and opens the next; False inside another."""
        recorder = self.recorder
        self.settle(None)
        around, track = recorder.places.surrounding()
        before = self.around(around)
        if before is None or before.phase != recorder.registry.phase:
            self._open(number, around, before, track).is_marked = True
            return True
        if not before.is_marked:
            return False
        self.end(before)
        step = self._open(number, before.around, None, track)
        step.is_marked = True
        # Sections that were open when the call came still have the ended step around them.
        before.successor = step
        return True


def _encloses(outer: Section, inner: Section) -> bool:
    above: Any = inner
    while isinstance(above, SectionContext) and above is not outer:
        above = context_above(above)
    return above is outer
