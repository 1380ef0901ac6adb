"""Fast path that opens and closes sections at minimum cost.

A section costs two clock reads, one set and one reset of a ContextVar, and two stores into shared
memory. The slow path, ``RecordedSections``, handles rarer cases: errors, links, resource usage,
re-entry, a full open table.

``bind`` creates a class whose methods access one journal through closure variables:

* All fields are set before the section becomes current, because a signal handler may open sections
  in between.
* The row is published before the open table's entry is cleared, because the process may be killed
  in between.
* Retiring the class (at the end of the run, or in a forked child) redirects its stores to scratch
  memory. Sections that are still open then have no effect, without a test on the hot path.

An exception that a signal handler raises is caught at any point: an interrupted ``__enter__`` opens
nothing, an interrupted ``__exit__`` completes. At the recursion limit ``__exit__`` cannot call any
function. The remaining work is then deferred to a later caller with more stack, and the recorder
does not replace the program's exception.
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

# The journal's row, with parent, root and track as bytes that are packed once for all children.
_ROW = struct.Struct("@LLL24sIIL" if IS_NATIVE else "<QQQ24sIIQ")
assert _ROW.size == ROW.size

# Plain integers: the lookup of an enum member costs ten times as much as that of a global.
_BEGIN = int(Kind.BEGIN)
_STEP, _STEP_TIME = int(Word.STEP), int(Word.STEP_TIME)
_LOST_FRAME = Word.LOST_FRAME
_HAS_PAYLOAD = int(Flag.HAS_PAYLOAD)
_SECTION = int(Kind.SECTION)
_WITH_PAYLOAD = int(Kind.SECTION | Flag.HAS_PAYLOAD)


def reset_and_surface(token: Any) -> None:
    """Reset ``CURRENT`` for a section that was still open when the recording ended."""
    CURRENT.reset(token)
    surface()


class Binding:
    """Section class of one journal, and functions that share its closure variables."""

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
    """Context manager that records one execution of a section."""

    __slots__ = ()
    decorate: ClassVar[Callable[..., Callable[[Any], Any]]]
    """Returns a decorator for a name, category and attributes; set by ``span``, a layer above."""

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
        recording: the recording that sections are written to.
        slow_path: opens and closes sections that the fast path cannot.
        parents: determines the parents of sections.
        enter_slow: enters a section that needs the slow path or was entered before.
        exit_slow: exits a section with an error or with more data than times and attributes.
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
            # An id is set in two cases: the section was entered before, or needs the slow path.
            if self.sid:
                return enter_slow(self)
            above = None
            try:
                self.sid = sid = next_id()
                track = get_ident()
                above = get_current()
                # Common case, tested in 30 ns: the enclosing section is of this journal, still open
                # (a generator's parent may have ended) and of this thread, and no event loop runs
                # in this thread (the track would be the task's).
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
                # Setting ``at`` opens the section, so the fields that readers of open sections use
                # are set before. The ``for`` loop pops and stores an entry without a check for
                # signals in between, so that an exception cannot lose the entry.
                for self.at in entries:
                    break
                at = self.at
                # Read the clock as late as possible: the time before is the recorder's cost.
                self.t0 = t0 = clock()
                put_open(buffer, at, sid, chunk, t0, self.entry)
                # Last: a signal handler may now open sections with this one as their parent.
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
                slot = t1 = 0  # 0: not determined yet; used by ``rescue_exit``
                t1 = clock()  # first: the time after it is the recorder's cost
                flags = _SECTION
                extra = self.extra
                if kind is not None or extra is not None:
                    if kind is not None or extra.__class__ is not Attributes:
                        if extra is not None and extra.profiled is not None and not extra.again:
                            # Must be called here, in a closure: in other functions, CPython 3.11
                            # finds no ``try`` at the first instruction while a profiler is on.
                            extra.profiled.profile.end()
                        slot = BY_SLOW_PATH
                        exit_slow(self, t1, error)
                        return
                    # The payload precedes the row: when readers reach a row, they use only payload
                    # parts that they have already read.
                    if payload(self.sid, {"a": extra.attributes}):
                        flags = _WITH_PAYLOAD
                reset_current(self.token)
                # Read the lease once: the slot must be compared with the end of the lease that it
                # was drawn from. Another thread may install the next lease in between; comparison
                # with its end could let two threads write the same slot.
                lease = journal.lease
                slot = lease.take()
                if slot < lease.end or (slot := renew(lease)):
                    # The last word of a row, its slot number, publishes it: if the process is
                    # killed before, the row is missing, never partial.
                    put(
                        ring, (slot & mask) << 6, self.t0, t1, self.sid, self.chunk,
                        self.entry, flags, slot,
                    )  # fmt: skip
                # Clear the entry after writing the row: if the process is killed in between, both
                # exist and readers use the row; in the opposite order the section would be lost.
                # Reset ``at`` first, so that ``rescue_exit`` cannot release the entry twice; an
                # exception then leaks at most the entry. Clear the entry before its release:
                # another section may use it afterwards.
                at = self.at
                self.at = 0
                words[at >> 3] = 0
                push(at)
            except BaseException as problem:  # noqa: BLE001 - the callee decides
                # Without a call, because a signal could interrupt after it. ``locals()`` would also
                # keep the journal's memory alive as long as the exception.
                try:
                    end, drawn = t1, slot
                except UnboundLocalError:  # interrupted before the first instruction
                    end = drawn = 0
                try:
                    slow_path.rescue_exit(self, end, drawn, problem, error)
                except RecursionError as deeper:
                    if deeper is problem or problem.__class__ not in EXPECTED:
                        raise problem from None
                if problem.__class__ is RecursionError:
                    # No calls below: no stack is left for them.
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
        """Open a step's section, whose id and entry are set, and make it current.

        ``link`` is the span id of the section of the run's trace that the step is linked to,
        ``at_ns`` the monotonic start time (0: now); ``n`` and ``number``: see ``one_step``. An
        interrupted call leaves the section in a state from which the start can be undone.
        """
        sid = section.sid
        section.track = track
        section.inner = None
        section.chunk = chunk = PARENTS.pack(0, sid, track)
        section.t0 = t0 = at_ns or clock()
        section.at = NO_ENTRY
        # The row with the step's number must precede the rows of its sections: the agent needs it
        # to assign them to the step.
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
        """End a step that has no ``Extra``; ``pieces`` is the encoded payload.

        An interrupted call leaves the section open, unless the row was already written. ``t1`` is
        the monotonic end time; ``flags`` are added to the row's flags.
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
                # Ignored: the section was entered in another context, or already exited.
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
            except UnboundLocalError:  # interrupted before the first instruction
                drawn = 0
            try_again(slow_path.forget_published, section, drawn)
            raise

    def retire() -> None:
        nonlocal buffer, words, ring, reset_current
        # Scratch memory has the journal's size, so that the offsets of open sections stay valid.
        # The journal's lease has been replaced by one that ends at 0, so that no slot is free.
        buffer = journal.scratch
        words = memoryview(buffer).cast("Q")
        ring = memoryview(buffer)[journal.shape.ring_at :]
        reset_current = reset_and_surface

    def watch_asyncio() -> None:
        nonlocal running_loop
        if running_loop is None:
            running_loop = find_running_loop()  # None while asyncio is not imported

    return Binding(BoundSection, begin_step, end_step, retire, watch_asyncio)
