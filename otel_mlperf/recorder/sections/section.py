"""The fast path that opens and closes a section at the least cost.

It costs two clock reads, one set and reset of a ContextVar and two stores into shared memory.
Everything that is not the common case (attributes, errors, another thread's parent, a full table)
takes the slow path through ``RecordedSections``.

``bind`` makes a class whose methods reach one journal through closure cells. Every field is set
before the object becomes current, because a signal handler may open sections in between. The row is
published before the open table's entry is cleared, because a kill may come in between. Retiring the
class (the run was stopped, or the process is a fork) points it at scratch memory, so that sections
which are still open become inert without a test on the hot path.

Any exception of a signal handler finds a ``try`` around it: then entering has opened nothing, and
leaving is complete. At the end of the program's stack (``sys.setrecursionlimit``) leaving cannot
call anything. The remaining work is then deferred to a later caller with more stack, and the
recorder raises nothing in place of the program's exception.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any, ClassVar

from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.journal.layout import ROW, Flag, Kind, Word
from otel_mlperf.recorder.core.faults import internal_error, try_again
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.core.thread_ident import get_ident as thread_ident
from otel_mlperf.recorder.core.tracks import find_running_loop
from otel_mlperf.recorder.sections.section_context import (
    CURRENT,
    NO_ENTRY,
    PARENTS,
    Attributes,
    SectionContext,
    inner_of,
    surface,
)
from otel_mlperf.recorder.sections.section_span import span_of
from otel_mlperf.recorder.sections.slow_path import BY_SLOW_PATH, EXPECTED, IS_NATIVE, OPEN_ENTRY

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from opentelemetry.trace import Span

    from otel_mlperf.journal.journal_writer import Pieces
    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.sections.parents import Parents
    from otel_mlperf.recorder.sections.slow_path import SlowPath

# The layout's row, with parent, root and track as one piece of bytes made once for all children.
_ROW = struct.Struct("@LLL24sIIL" if IS_NATIVE else "<QQQ24sIIQ")
assert _ROW.size == ROW.size

# Plain numbers: looking up a member of an enum costs ten times as much as a global.
_BEGIN = int(Kind.BEGIN)
_STEP, _STEP_TIME = int(Word.STEP), int(Word.STEP_TIME)
_LOST_FRAME = Word.LOST_FRAME
_HAS_PAYLOAD = int(Flag.HAS_PAYLOAD)
_SECTION = int(Kind.SECTION)
_WITH_PAYLOAD = int(Kind.SECTION | Flag.HAS_PAYLOAD)


def reset_and_surface(token: Any) -> None:
    """Leave a section that was still open when the recording ended."""
    CURRENT.reset(token)
    surface()


class Binding:
    """The section class of one journal, and the functions that change it later."""

    __slots__ = ("begin_step", "end_step", "retire", "section", "watch_asyncio")

    def __init__(
        self,
        section: type[Section],
        begin_step: Callable[[SectionContext, int, int, int, int, int], None],
        end_step: Callable[[SectionContext, int, int, Pieces], None],
        retire: Callable[[], None],
        watch_asyncio: Callable[[], None],
    ) -> None:
        self.section = section
        self.begin_step = begin_step
        self.end_step = end_step
        self.retire = retire
        self.watch_asyncio = watch_asyncio


class Section(SectionContext):
    """The object of a ``with`` statement: one entering of one section."""

    __slots__ = ()
    decorate: ClassVar[Callable[..., Callable[[Any], Any]]]
    """Makes a decorator from name, category and attributes; set by ``span``, a layer above."""

    def __enter__(self) -> Section:
        raise NotImplementedError  # each journal's class has its own

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        raise NotImplementedError

    def __call__(self, function: Any) -> Any:
        """Decorate a function, for ``@span("name")``."""
        try:
            name, category, constant = self.recording.registry.described(self.entry)
            own = self.extra.attributes if self.extra is not None else None
            registry = self.recording.registry
            how = {"resources": self.entry in registry.measured}
            profile = registry.profiled.get(self.entry, "")
            given = {**(constant or {}), **(own or {})}
            return self.decorate(name, category, given, profile=profile, **how)(function)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return function


def bind(  # noqa: C901, PLR0915 - closures of one scope, by design
    recording: Recording,
    slow_path: SlowPath,
    parents: Parents,
    enter_slow: Callable[[Section], Section],
    exit_slow: Callable[[Section, int, BaseException | None], None],
) -> Binding:
    """Return a section class for the recording's journal.

    Args:
        recording: the recording that it writes to.
        slow_path: opens and closes what the fast path cannot.
        parents: the placement of sections.
        enter_slow: enters a section that has an id already.
        exit_slow: leaves a section that has more than times and attributes.
    """
    journal = recording.journal
    buffer: Any = journal.buffer
    words = journal.words
    ring: Any = memoryview(journal.buffer)[journal.shape.ring_at :]
    mask = journal.shape.rows - 1
    entries, push = iter(journal.free.pop, None), journal.free.append
    put, put_open = _ROW.pack_into, OPEN_ENTRY.pack_into
    get_current, set_current, reset_current = CURRENT.get, CURRENT.set, CURRENT.reset
    get_ident, clock, next_id = thread_ident, time.monotonic_ns, recording.next_id
    renew, payload, place = slow_path.renew, slow_path.payload, parents.place
    running_loop = find_running_loop()  # None while asyncio is not imported

    class BoundSection(Section):
        __slots__ = ()

        def __enter__(self) -> Section:
            # One test for two cases: entered before, or made for the slow path.
            if self.sid:
                return enter_slow(self)
            above = None
            try:
                self.sid = sid = next_id()
                track = get_ident()
                above = get_current()
                # Four tests, 30 ns, of what is nearly always true: a section of this journal, still
                # open (a generator's parent may have ended), of this thread, and no event loop runs
                # in it, where the track would be the task's.
                if (
                    above.__class__ is BoundSection
                    and above.at
                    and above.track == track
                    and (running_loop is None or running_loop() is None)
                ):
                    chunk = above.inner or inner_of(above)
                else:
                    chunk, track = place(above, sid, self)
                self.chunk = chunk
                self.track = track
                self.inner = None
                # ``at`` opens the section, so all fields that readers of open sections need are set
                # by now. A loop stores the value before the interpreter checks for signals: an
                # exception loses no table entry.
                for self.at in entries:
                    break
                at = self.at
                # As late as possible: what comes before is the recorder's cost, not the program's.
                self.t0 = t0 = clock()
                put_open(buffer, at, sid, chunk, t0, self.entry)
                # Last: a signal handler may open sections from here on, with this as their parent.
                self.token = set_current(self)
            except BaseException as error:  # noqa: BLE001 - the callee decides
                slow_path.rescue_enter(self, error, above)
            return self

        @at_once
        def __exit__(  # noqa: C901, PLR0912 - no calls
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None:
            try:
                slot = t1 = 0  # for the rescue: whether there was a time and a row
                t1 = clock()  # first, for the same reason as it is last above: the program's time
                flags = _SECTION
                extra = self.extra
                if kind is not None or extra is not None:
                    if kind is not None or extra.__class__ is not Attributes:
                        if extra is not None and extra.profiled is not None and not extra.again:
                            # Must be here: at the first instruction of a profiled function CPython
                            # 3.11 finds a ``try`` only if it is a closure like this one.
                            extra.profiled.profile.end()
                        slot = BY_SLOW_PATH
                        exit_slow(self, t1, error)
                        return
                    # Before the row: a reader assembles only parts that it has already seen.
                    if payload(self.sid, {"a": extra.attributes}):
                        flags = _WITH_PAYLOAD
                reset_current(self.token)
                # Read once: the slot must be below the end of the lease that it was drawn under.
                # Another thread may install the next lease in between. Compared with the end of
                # that lease, a slot that was assigned again would be written twice.
                lease = journal.lease
                slot = lease.take()
                if slot < lease.end or (slot := renew(lease)):
                    # The sequence is the row's last word and publishes it: a kill in the middle
                    # leaves a hole, never half a row.
                    put(
                        ring, (slot & mask) << 6, self.t0, t1, self.sid, self.chunk,
                        self.entry, flags, slot,
                    )  # fmt: skip
                # After the row: a kill in between leaves both, and readers believe the row; in the
                # opposite order the section would be lost. ``at`` is cleared first, so that an
                # exception here costs at most the table entry: the rescue must not release it
                # twice. The entry is cleared before its release: after that it may be another
                # section's.
                at = self.at
                self.at = 0
                words[at >> 3] = 0
                push(at)
            except BaseException as problem:  # noqa: BLE001 - the callee decides
                # Determined without a call, after which it could be interrupted again: also,
                # ``locals()`` would keep the journal's memory as long as the exception lives.
                try:
                    end, drawn = t1, slot
                except UnboundLocalError:  # at the first instruction
                    end = drawn = 0
                try:
                    slow_path.rescue_exit(self, end, drawn, problem, error)
                except RecursionError as deeper:
                    if deeper is problem or problem.__class__ not in EXPECTED:
                        raise problem from None
                if problem.__class__ is RecursionError:
                    # No call from here on: no stack is left.
                    left, extra = self, self.extra
                    if extra is not None and extra.again:
                        for one in extra.again:
                            left = one if one.at else left
                    rest = left, left.at, end, drawn, kind
                    slow_path.unfinished = slow_path.finish_late, rest, slow_path.unfinished
                    left.at = 0

        def as_span(self) -> Span:
            return span_of(self, parents.trace_of)

    BoundSection.recording = recording

    def begin_step(
        section: SectionContext, track: int, link: int, n: int, number: int, at_ns: int
    ) -> None:
        """Open a step's section, which has its id and entry, and make it current; 0: now.

        If interrupted, it leaves the section in a state that can be taken back.
        """
        sid = section.sid
        section.track = track
        section.inner = None
        section.chunk = chunk = PARENTS.pack(0, sid, track)
        section.t0 = t0 = at_ns or clock()
        section.at = NO_ENTRY
        # Before anything inside it: the agent must know trace and step when children arrive.
        lease = journal.lease
        slot = lease.take()
        if slot < lease.end or (slot := renew(lease, _LOST_FRAME)):
            about = PARENTS.pack(link, n, track)
            put(ring, (slot & mask) << 6, t0, number, sid, about, section.entry, _BEGIN, slot)
        try:
            for section.at in entries:
                break
            at = section.at
        except IndexError:
            journal.count(Word.LOST_OPEN)
        else:
            put_open(buffer, at, sid, chunk, t0, section.entry)
        section.token = set_current(section)
        words[_STEP] = number
        words[_STEP_TIME] = t0

    @at_once
    def end_step(  # noqa: C901 - each call would cost
        section: SectionContext, t1: int, flags: int, pieces: Pieces
    ) -> None:
        """End a step that has only a payload, already cut into pieces.

        If interrupted, it leaves the section open, unless its row is written.
        """
        try:
            slot = 0
            at = section.at
            if not at:
                return
            try:
                reset_current(section.token)
            except (ValueError, RuntimeError) as error:
                if is_foreign(error):
                    raise
                # else entered in another context, or left before
            flags |= _SECTION
            if pieces and not recording.is_retired and journal.put_payload(section.sid, pieces):
                flags |= _HAS_PAYLOAD
            lease = journal.lease
            slot = lease.take()
            if slot < lease.end or (slot := renew(lease)):
                put(
                    ring, (slot & mask) << 6, section.t0, t1, section.sid, section.chunk,
                    section.entry, flags, slot,
                )  # fmt: skip
            section.at = 0
            if at != NO_ENTRY:
                words[at >> 3] = 0
                push(at)
        except BaseException:
            try:
                drawn = slot
            except UnboundLocalError:  # as above
                drawn = 0
            try_again(slow_path.forget_published, section, drawn)
            raise

    def retire() -> None:
        nonlocal buffer, words, ring, reset_current
        # Of the same size, so that the offsets of open sections are valid in it. The lease has been
        # replaced before: a slot that is drawn now finds its end at 0.
        buffer = journal.scratch
        words = memoryview(buffer).cast("Q")
        ring = memoryview(buffer)[journal.shape.ring_at :]
        reset_current = reset_and_surface

    def watch_asyncio() -> None:
        nonlocal running_loop
        if running_loop is None:
            running_loop = find_running_loop()  # None while asyncio is not imported

    return Binding(BoundSection, begin_step, end_step, retire, watch_asyncio)
