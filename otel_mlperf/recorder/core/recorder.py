"""What holds one process's recording together, and closes its sections the long way?

``Recorder`` is everything behind the hot path of ``section``. There is at most one in a process
that is *active*; ``span`` and the others find it there. All of it may run in signal handlers and in
several threads at once, so nothing here takes a lock.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, Any

from otel_mlperf.journal.layout import Flag, Kind, Word
from otel_mlperf.recorder.core.faults import internal_error
from otel_mlperf.recorder.core.name_registry import Registry
from otel_mlperf.recorder.core.scrub import describe_exception, is_failure
from otel_mlperf.recorder.core.tracks import Tracks
from otel_mlperf.recorder.instruments.cells import Cells
from otel_mlperf.recorder.instruments.logged_values import Values
from otel_mlperf.recorder.sections.half_entered import NO_ENTRY
from otel_mlperf.recorder.sections.parents import Places
from otel_mlperf.recorder.sections.section import (
    OPEN_ENTRY,
    PARENTS,
    SLOW,
    Section,
    bind,
)
from otel_mlperf.recorder.sections.section_context import (
    CURRENT,
    SectionContext,
    context_above,
    extra_of,
    surface,
)
from otel_mlperf.recorder.stepping.step_recording import Stepping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mlperf.config import Config
    from otel_mlperf.journal.journal_writer import Journal
    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.recorder.stepping.step_recording import Step

_ATTEND_NS = 100_000_000


class Recorder:
    """One process's recording into one journal."""

    def __init__(self, journal: Journal, meta: JournalMeta, config: Config) -> None:
        self.journal = journal
        self.meta = meta
        self.config = config
        self.is_retired = False
        # 62 random bits, then counted up: one C call an id, and never the program's `random`.
        self.next_id: Callable[[], int] = itertools.count(
            int.from_bytes(os.urandom(8)) >> 2 | 1 << 62
        ).__next__
        self.tracks = Tracks(journal.entry)
        self.outer: list[Section] = []
        """Open run, epochs and phases: what sections without a context belong to."""
        self.now_and_then: list[Callable[[int], None]] = []
        """Called with the time at the begin of a step, ten times a second at most."""
        self.due_ns = 0
        """When ``attend`` is to be called next."""
        self.before_step: list[Callable[[], None]] = []
        """Called before a step begins, outside its time."""
        self.after_step: list[Callable[[Step], None]] = []
        """Called with a step when its row is written, outside its time."""
        self.at_failure: list[Callable[[SectionContext, BaseException], None]] = []
        """Called when an exception leaves a section, which is still open; may not raise."""
        self.at_retire: list[Callable[[], None]] = []
        """Called when nothing is recorded any more, also in a forked child."""
        self.step_flags = 0
        """Flags of the rows of steps that end."""
        self._last_error: tuple[int, int, str, str] = (0, 0, "", "")
        self.places = Places(self)
        self.binding = bind(self)
        self.new_section = self.binding.section
        self.registry = Registry(journal.entry, self.binding.watch_asyncio)
        self.stepping = Stepping(self)
        self.cells = Cells(self)
        self.values = Values(self)
        self.replacement: Callable[[], Recorder | None] = lambda: None
        """What records in place of this one once it is retired: a forked child's own."""

    # -- opening and closing, the long way ------------------------------------------------------

    def rename(self, section: SectionContext, name: str) -> None:
        """Gives an open section another name."""
        _, category = self.registry.about(section.entry)
        section.entry = self.registry.entry((name, category), name, category)

    def make(self, entry: int) -> Section:
        """A section that has not been entered."""
        section = self.new_section()
        section.entry = entry
        section.sid = SLOW if entry in self.registry.outside else 0
        section.extra = None
        return section

    def enter(self, name: str, category: str | None = None, **attributes: Any) -> Section:
        """Opens one of the recorder's own sections."""
        section = self.make(self.registry.entry((name, category), name, category))
        if attributes:
            extra_of(section).attributes = attributes
        return section.__enter__()

    def open(self, section: Section, sid: int, chunk: bytes, track: int, t0: int = 0) -> None:
        """Opens a section whose place is known and makes it current."""
        section.chunk, section.track, section.inner = chunk, track, None
        section.sid = sid
        try:
            section.at = self.journal.free.pop()
        except IndexError:
            section.at = NO_ENTRY
            self.journal.count(Word.LOST_OPEN)
        section.t0 = t0 or time.monotonic_ns()
        if section.at != NO_ENTRY:
            buffer = self.journal.buffer
            OPEN_ENTRY.pack_into(buffer, section.at, sid, chunk, section.t0, section.entry)

    def make_current(self, section: Section) -> None:
        """Puts an open section into the caller's context."""
        section.token = CURRENT.set(section)

    def close(
        self,
        section: SectionContext,
        t1: int,
        error: list[str] | None = None,
        kind: Kind = Kind.SECTION,
        more_flags: int = 0,
        **content: Any,
    ) -> None:
        """Writes an open section's row, with what does not fit into it, and clears its entry."""
        if self.is_retired or not section.at:
            section.at = 0
            return
        extra = section.extra
        if extra is not None:
            if extra.attributes:
                more = content.get("a")
                content["a"] = {**extra.attributes, **more} if more else extra.attributes
            if extra.links:
                content["l"] = extra.links
            error = error or extra.error
        flags = int(kind) | more_flags
        if error is not None:
            content["e"] = error
            flags |= Flag.ERROR
        if content and self.journal.payload(section.sid, content):
            flags |= Flag.HAS_PAYLOAD
        parent, root, track = PARENTS.unpack(section.chunk)
        lost = Word.LOST_RING_FULL if kind is Kind.SECTION else Word.LOST_FRAME
        self.journal.put(
            section.t0, t1, section.sid, parent, root, track, section.entry, flags, lost
        )
        self.forget(section)

    def forget(self, section: SectionContext) -> None:
        """Clears a section's entry in the open table: its row is written, or never will be."""
        at, section.at = section.at, 0
        if at and at != NO_ENTRY and not self.is_retired:
            self.journal.words[at >> 3] = 0
            self.journal.free.append(at)

    def leave(self, section: SectionContext) -> None:
        """Makes what was current before the section current again."""
        token = getattr(section, "token", None)
        if token is None:
            return
        try:
            CURRENT.reset(token)
        except (ValueError, RuntimeError):
            # Entered in another context (a generator that somebody else closes), or left before.
            return
        if self.is_retired:
            surface()

    def enter_slow(self, section: Section) -> Section:
        """Enters a section that goes to the run's trace, or one that was entered before."""
        if section.sid == SLOW:
            self.open_outside(section)
            return section
        fresh = self.make(section.entry)
        extra = extra_of(section)
        if extra.attributes and not extra.again:
            extra_of(fresh).attributes = dict(extra.attributes)
        extra.again = [*(extra.again or []), fresh]
        return fresh.__enter__()

    def open_outside(self, section: Section) -> None:
        """Opens a section that belongs to the run's trace, even if a step is open around it."""
        around, track = self.places.surrounding()
        step = self.stepping.around(around)
        sid = self.next_id()
        if step is None:
            chunk, track = self.places.place(CURRENT.get(), sid)
        else:
            chunk = PARENTS.pack(step.link, self.meta.run_span, track)
            if step.section.track == track:
                extra_of(section).step = step
        self.open(section, sid, chunk, track)
        self.make_current(section)

    def exit_slow(self, section: Section, t1: int, error: BaseException | None) -> None:
        """Leaves a section that has more to it than times."""
        chosen = _the_one_left(section)
        if chosen is not section:
            chosen.__exit__(type(error) if error else None, error, None)
            return
        if not getattr(section, "at", 0):
            self.leave(section)
            return
        extra = section.extra
        words = self.describe(section, error) if is_failure(error) else None
        if error is not None:
            self._close_leaked(section, t1, words)
        if extra is not None:
            self.stepping.end_inside(section, t1, words)
        self.leave(section)
        self.close(section, t1, words)
        if extra is not None and extra.step is not None:
            extra.step.excluded += t1 - section.t0
        if words is not None:
            self.stepping.note_crossing(section, words)
            self.stepping.dropped.settle_inside(section, words)

    def _close_leaked(self, section: Section, t1: int, words: list[str] | None) -> None:
        """Ends sections inside whose exit never ran: an interrupt came at its very beginning."""
        leaked, inner = [], CURRENT.get()
        while isinstance(inner, self.new_section) and inner is not section:
            leaked.append(inner)
            inner = context_above(inner)
        if inner is not section:
            return  # it is not the caller's context that the section was entered in
        for inner in leaked:
            step = self.stepping.open.get(inner.sid)
            if step is not None:
                self.stepping.end(step, t1, words)
            elif inner.at:
                self.close(inner, t1, words)

    def describe(self, section: SectionContext, error: BaseException | None) -> list[str]:
        """Type, message and stack; the stack only for the innermost section that it crosses."""
        assert error is not None
        self.tell_failure(section, error)
        before_id, parent, kind, message = self._last_error
        crossed = before_id == id(error) and parent == section.sid
        words = describe_exception(
            error, with_text=self.config.exception_text, with_stack=not crossed
        )
        if crossed and [kind, message] != words[:2]:
            words = describe_exception(error, with_text=self.config.exception_text)
        self._last_error = (id(error), PARENTS.unpack(section.chunk)[0], words[0], words[1])
        return words

    def tell_failure(self, section: SectionContext, error: BaseException) -> None:
        """Tells those who want to know that an exception leaves an open section."""
        if not self.is_retired:
            for call in self.at_failure:
                call(section, error)

    def attend(self, now: int) -> None:
        """Does what must happen now and then; what of it fails keeps no step from beginning."""
        self.due_ns = now + _ATTEND_NS
        for call in self.now_and_then:
            try:
                call(now)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)

    # -- when the ring is full, or nothing is recorded any more ----------------------------------

    def payload(self, span: int, content: Mapping[str, Any]) -> bool:
        """Writes what belongs to the row that follows; False where it had to be dropped."""
        return not self.is_retired and self.journal.payload(span, content)

    def renew(self, lease: Any, lost: Word = Word.LOST_RING_FULL) -> int:
        """A slot under the next lease; 0 where the ring is full or nothing is recorded any more."""
        return 0 if self.is_retired else self.journal.renew(lease, lost)

    def retire(self) -> None:
        """Nothing more is written by sections that are still open, or opened late."""
        self.is_retired = True
        self.cells.retire()
        for call in self.at_retire:
            call()
        self.journal.lease = _NO_LEASE
        self.binding.retire()


class _NoLease:
    end = 0
    next: dict[int, Any] = {}  # noqa: RUF012 - never filled
    take = itertools.repeat(1).__next__


_NO_LEASE: Any = _NoLease()


def _the_one_left(section: Section) -> Section:
    """Which of the sections made from one handle ends now."""
    again = section.extra.again if section.extra is not None else None
    current = CURRENT.get()
    if not again or current is section:
        return section
    chosen: Section = current if current in again else again[-1]
    again.remove(chosen)
    return chosen
