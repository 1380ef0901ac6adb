"""When does a step begin and end, which number has it, and what if it fails?

A step is a root: it writes a BEGIN row before anything inside it. ``n`` counts the steps that this
process began in a phase and makes the trace id; *number* is what the user counts.

A loop that is left by an exception drops its iterator, which cannot see why: see ``dropped``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from otel_mlperf import names
from otel_mlperf.journal.layout import Kind
from otel_mlperf.recorder.core.tracks import is_in_task
from otel_mlperf.recorder.sections.section import root_of
from otel_mlperf.recorder.sections.section_context import CURRENT, Extra, extra_of
from otel_mlperf.recorder.stepping.abandoned_loops import Dropped

if TYPE_CHECKING:
    from otel_mlperf.journal.journal_writer import Pieces
    from otel_mlperf.recorder.core.recorder import Recorder
    from otel_mlperf.recorder.sections.section import Section
    from otel_mlperf.recorder.stepping.abandoned_loops import End

_MASK = (1 << 64) - 1
_REMEMBERED = 2048


class Step:
    """An open step, and what is added up in it."""

    # Defaults of the class: most steps have none of it.
    samples: int | None = None
    tokens: int | None = None
    excluded = 0
    """Time of phases and checkpoints inside, ns."""
    crossed: list[str] | None = None
    """The exception that crossed a section inside it last."""
    is_marked = False
    """Whether ``mark_step`` opened it: it ends only when the next one begins."""
    latest: list[Step] | None = None
    """The one that is open of those that ``mark_step`` opened one after the other."""

    def __init__(
        self, section: Section, phase: str, n: int, number: int, around: Section | None, link: int
    ) -> None:
        self.section, self.phase, self.n, self.number = section, phase, n, number
        self.epoch: int | None = None
        self.around = around
        """The section that it ends with at the latest."""
        self.link = link
        """The section of the run's trace that it belongs to."""


Added = tuple["int | None", "int | None", int, "int | None"]
"""What is added up in a step: samples, tokens, time left out, epoch."""


class _Count:
    """What is counted of a phase."""

    __slots__ = ("entry", "n", "number")

    def __init__(self, entry: int) -> None:
        self.entry, self.n, self.number = entry, 0, 0


class Stepping:
    """The steps of one recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.open: dict[int, Step] = {}
        self.epoch: int | None = None
        self.latest: deque[tuple[int, str, int]] = deque(maxlen=_REMEMBERED)
        """Span id, phase and n of the steps that began last."""
        self._counts: dict[str, _Count] = {}
        self.dropped = Dropped(recorder)
        self._link: tuple[Section | None, int] = (None, recorder.meta.run_span)
        """The section around the last step, and the span that it was linked to."""
        self._last: tuple[Added | None, Pieces | None] = (None, None)
        """What the step before had added up, and its text."""

    # -- numbers --------------------------------------------------------------------------------

    def next_number(self, phase: str = names.TRAIN) -> int:
        """The number that the next step of ``phase`` gets."""
        return self._count(phase).number

    def set_next_number(self, number: int, phase: str = names.TRAIN) -> None:
        """From now on steps of ``phase`` count from ``number``."""
        self._count(phase).number = number

    def _count(self, phase: str) -> _Count:
        count = self._counts.get(phase)
        if count is None:
            registry, name = self.recorder.registry, names.step_span(phase)
            entry = registry.register(name, names.STEP, phase)
            count = self._counts.setdefault(phase, _Count(entry))
        return count

    def current(self, phase: str) -> Step | None:
        """The step of ``phase`` that began last and is open."""
        steps = reversed(list(self.open.values()))  # at once: other threads open steps, too
        return next((step for step in steps if step.phase == phase), None)

    def of_root(self, root: int) -> tuple[str, int] | None:
        """Phase and n of the step with that span id; None if it is none, or long ago."""
        step = self.open.get(root)
        if step is not None:
            return step.phase, step.n
        found = (one for one in reversed(self.latest.copy()) if one[0] == root)
        return next((one[1:] for one in found), None)

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
        if self.dropped:
            self.dropped.settle(None)
        around, track = CURRENT.get(), threading.get_ident()
        outer = recorder.outer
        if (
            outer
            and around is outer[-1]
            and around.at
            and around.track == track
            and not is_in_task()
        ):
            return self._open(number, around, None, track)
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
        count = self._counts.get(phase) or self._count(phase)
        n, number = count.n, count.number if number is None else int(number)
        count.n, count.number = n + 1, number + 1
        known, link = self._link
        if around is not known or outer is not None:
            link = self._find_link(around, outer)
        section = recorder.new_section()
        section.entry = count.entry
        section.sid = sid = recorder.next_id()
        section.at, section.extra = 0, None
        step = Step(section, phase, n, number, around, link)
        step.epoch = self.epoch
        self.latest.append((sid, phase, n))
        self.open[sid] = step
        recorder.binding.begin_step(section, track, link, n & _MASK, number & _MASK)
        if section.t0 >= recorder.due_ns:
            recorder.attend(section.t0)
        return step

    def _find_link(self, around: Section | None, outer: Step | None) -> int:
        if around is not None and around.extra.__class__ is not Extra:
            extra_of(around)  # whoever leaves it then looks for steps inside
        if outer is not None:
            return outer.link
        run = self.recorder.meta.run_span
        link = around.sid if around is not None and root_of(around) == run else run
        self._link = around, link
        return link

    def end(self, step: Step, t1: int = 0, error: list[str] | None = None) -> None:
        """Ends an open step and writes what was added up in it."""
        section, recorder = step.section, self.recorder
        if self.open.pop(section.sid, None) is None:
            recorder.leave(section)
            return
        t1 = t1 or time.monotonic_ns()
        if self.open:
            self.end_inside(section, t1, error)
        added = (step.samples, step.tokens, step.excluded, step.epoch)
        pieces = self._pieces_of(added)
        if error is None and section.extra is None and pieces is not None:
            recorder.binding.end_step(section, t1, recorder.step_flags, pieces)
        else:
            recorder.leave(section)
            flags = recorder.step_flags
            recorder.close(section, t1, error, more_flags=flags, **_payload_of(*added))
        for call in recorder.after_step:
            call(step)

    def _pieces_of(self, added: Added) -> Pieces | None:
        """The text of a step's payload, mostly that of the one before; None: it has none."""
        if added != self._last[0]:
            content = _payload_of(*added)
            pieces = self.recorder.journal.pieces(content) if content else ()
            self._last = added, (pieces or None) if content else ()
        return self._last[1]

    def cancel(self, step: Step) -> None:
        """Takes an open step back: its number is not used up, its time is outside."""
        section, count = step.section, self._count(step.phase)
        if self.open.pop(section.sid, None) is None:
            return
        if count.n == step.n + 1:
            count.n = step.n
        if count.number == step.number + 1:
            count.number = step.number
        self.recorder.leave(section)
        self.cancel_section(section)

    def cancel_section(self, section: Section) -> None:
        """Takes an open section back."""
        section.extra = None
        self.recorder.close(section, time.monotonic_ns(), kind=Kind.CANCEL)

    # -- steps that nobody ends -----------------------------------------------------------------

    def ending(self, step: Step) -> End:
        """What ends a dropped step."""
        return lambda t1, error: self.end(step, t1, error or step.crossed)

    def note_crossing(self, section: Section, words: list[str]) -> None:
        """An exception leaves ``section``, and may end a loop whose iterator is blind to it."""
        step = self.open.get(root_of(section))
        if step is not None and step.section is not section:
            step.crossed = words

    def end_inside(self, section: Section, t1: int, error: list[str] | None) -> None:
        """What encloses steps ends: so do they."""
        for step in [s for s in list(self.open.values()) if s.around is section]:
            if self.dropped.settle_one(step.section, error):
                continue
            if step.is_marked:
                self.cancel(step)
            else:
                self.end(step, t1, error)

    def end_all(self, t1: int, error: list[str] | None) -> None:
        """The run ends: marked steps are cancelled, the others end."""
        self.dropped.settle(error)
        for step in reversed(list(self.open.values())):
            if step.is_marked and error is None:
                self.cancel(step)
            else:
                self.end(step, t1, error)

    # -- mark_step ------------------------------------------------------------------------------

    def mark(self, number: int | None) -> bool:
        """Ends the step that the last call opened, and opens the next; False inside another."""
        recorder = self.recorder
        self.dropped.settle(None)
        around, track = recorder.places.surrounding()
        before = self.around(around)
        if before is None or before.phase != recorder.registry.phase:
            step = self._open(number, around, before, track)
            step.is_marked, step.latest = True, [step]
            return True
        if not before.is_marked:
            return False
        self.end(before)
        step = self._open(number, before.around, None, track)
        step.is_marked, step.latest = True, before.latest or [step]
        step.latest[0] = step
        # Sections that were open when the call came still have the ended step around them.
        extra_of(before.section).latest = step.latest
        return True


def _payload_of(
    samples: int | None, tokens: int | None, excluded: int, epoch: int | None
) -> dict[str, Any]:
    """What was added up in a step, as its payload."""
    found = {"n": samples, "t": tokens, "x": excluded or None}
    content: dict[str, Any] = {key: value for key, value in found.items() if value is not None}
    if epoch is not None:
        content["a"] = {names.TRAINING_EPOCH: epoch}
    return content
