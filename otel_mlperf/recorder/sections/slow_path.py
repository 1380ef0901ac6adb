"""The slow path that opens, closes and leaves a section where cost does not matter.

``section`` does the same at the least cost and falls back on this module; the recorder's own
sections use it, too. The slow path also completes operations of the fast path that were cut off: by
Ctrl-C, by a full table, or by a token of another context. The section is then opened or closed
exactly once, and exceptions of the program propagate.
"""

from __future__ import annotations

import struct
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

from opentelemetry.trace import StatusCode

from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.journal.layout import OPEN, Flag, Kind, Word
from otel_mlperf.recorder.core.faults import internal_error, try_again
from otel_mlperf.recorder.core.interrupts import at_once
from otel_mlperf.recorder.sections.section_context import (
    CURRENT,
    NO_ENTRY,
    PARENTS,
    SectionContext,
    surface,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.recorder.core.recording import Recording
    from otel_mlperf.recorder.sections.parents import OpenStep
    from otel_mlperf.recorder.sections.section_context import Extra

# A native "L" is stored a quarter faster than "Q" where the two are the same.
IS_NATIVE = sys.byteorder == "little" and struct.calcsize("@L") == struct.calcsize("<Q")
# The layout's struct with parent, root and track as one piece of bytes, made once for all children.
OPEN_ENTRY = struct.Struct("@L24sLL" if IS_NATIVE else "<Q24sQQ")
assert OPEN_ENTRY.size == OPEN.size
_OPEN_START = 4
"""Index of the word with the start time in an entry of the open table."""
EXPECTED = (RecursionError, IndexError, AttributeError, ValueError, RuntimeError)
"""Exceptions that leaving is expected to raise: a stack that is too short, NO_ENTRY as an index, an
exit without an entering, a token of another context. Any other one is a fault of the recorder.
"""
_OK = StatusCode.OK.value
_RECORDED = (
    ("l", "links"), ("x", "excluded_ns"), ("s", "status"), ("v", "events"), ("w", "dropped_events"),
    ("r", "is_parent_remote"),
)  # fmt: skip
"""Keys of a payload, and the corresponding fields of ``Extra``; 0.3 µs for all of them."""
BY_SLOW_PATH = -1
"""Stands for a slot: the slow path leaves the section, and has left it when it raises."""


class Stamps(Protocol):
    """Inserts stamps at starts and ends of sections among the work that a GPU receives.

    It never waits, and raises only exceptions of the program.
    """

    def begin(self) -> Any:
        """Insert a stamp here; None: not here, or not now."""

    def end(self, stamp: Any, section: SectionContext) -> int:
        """Insert an end stamp for an open section that started with ``stamp``; return row flags."""

    def end_step(self, stamp: Any, step: OpenStep, end_ns: int) -> int:
        """Insert an end stamp for a step that ended then; return row flags."""

    def drop(self, stamp: Any) -> None:
        """Discard a start stamp that gets no end."""


class SlowPath:
    """The slow path of one recording: opens, closes and leaves sections."""

    stamps: Stamps | None = None
    """Set once the program uses a GPU, if stamps are enabled."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self._journal = recording, recording.journal
        self.unfinished: Any = None
        """Deferred work for which no stack was left: a function, its arguments, and the earlier
        deferred work of the same form.
        """

    # -- opening and closing ---------------------------------------------------------------------

    def open(
        self, section: SectionContext, sid: int, chunk: bytes, track: int, t0: int = 0
    ) -> None:
        """Open a section whose place is known."""
        section.chunk, section.track, section.inner = chunk, track, None
        section.sid = sid
        try:
            section.at = self._journal.free.pop()
        except IndexError:
            section.at = NO_ENTRY
            self._journal.count(Word.LOST_OPEN)
        section.t0 = t0 or time.monotonic_ns()
        if section.at != NO_ENTRY:
            buffer = self._journal.buffer
            OPEN_ENTRY.pack_into(buffer, section.at, sid, chunk, section.t0, section.entry)

    def backdate(self, section: SectionContext, t0: int) -> None:
        """Set an earlier start of an open section, in which nothing has been since."""
        section.t0 = t0
        if section.at != NO_ENTRY and not self.recording.is_retired:
            self._journal.words[(section.at >> 3) + _OPEN_START] = t0

    def make_current(self, section: SectionContext) -> None:
        """Make an open section current in the caller's context."""
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
        """Write an open section's row and payload, and clear its entry."""
        switch_off(section)  # for a section that other code ends
        if self.recording.is_retired or not section.at:
            section.at = 0
            return
        flags = int(kind) | more_flags
        try:
            flags |= self._put_content(section, t1, error, content)
        except BaseException:
            flags |= self._put_content(section, t1, error, content)
            raise
        finally:
            self._write(section, t1, flags, kind)

    def _put_content(
        self, section: SectionContext, t1: int, error: list[str] | None, content: dict[str, Any]
    ) -> int:
        """Write the payload of a row and return the row's flags; idempotent."""
        extra, flags = section.extra, 0
        if extra is not None:
            _add_recorded(content, extra, t1 - section.t0)
            flags = extra.flags
            self.drop_stamp(extra)  # for a section that other code ends
            within, extra.within = extra.within, None
            if within is not None:
                within.covered_ns += t1 - section.t0
        if error is not None:
            content["e"] = error
        if has_failed(error, extra):
            flags |= Flag.ERROR
        if content and self._journal.payload(section.sid, content):
            flags |= Flag.HAS_PAYLOAD | (Flag.MEASURED if "u" in content else 0)
        return flags

    def drop_stamp(self, extra: Extra) -> None:
        """Discard the stamp at a section's start, if its end has no stamp."""
        if extra.stamp is not None and self.stamps is not None:
            stamp, extra.stamp = extra.stamp, None
            self.stamps.drop(stamp)

    def _write(self, section: SectionContext, t1: int, flags: int, kind: Kind) -> None:
        """Write the row of an open section, which closes it."""
        parent, root, track = PARENTS.unpack(section.chunk)
        lost = Word.LOST_RING_FULL if kind is Kind.SECTION else Word.LOST_FRAME
        slot = 0
        try:
            slot = self._journal.draw(lost)
            row = (section.t0, t1, section.sid, parent, root, track, section.entry, flags)
            self._journal.store(slot, *row)
            self.forget(section)
        except BaseException:
            try_again(self.forget_published, section, slot)
            raise

    def forget(self, section: SectionContext) -> None:
        """Clear a section's entry in the open table: its row is written, or never will be."""
        at, section.at = section.at, 0
        if at and at != NO_ENTRY and not self.recording.is_retired:
            self._journal.words[at >> 3] = 0
            self._journal.free.append(at)

    def forget_published(self, section: SectionContext, slot: int) -> None:
        """Clear a section's entry if its row has arrived in ``slot``."""
        # Drawn is not written: only the row's own sequence shows that it is there.
        if slot and self._is_published(slot):
            self.forget(section)

    def leave(self, section: SectionContext) -> None:
        """Make what was current before the section current again."""
        token = getattr(section, "token", None)
        if token is None:
            return
        try:
            CURRENT.reset(token)
        except (ValueError, RuntimeError) as error:
            # Entered in another context (a generator that other code closes), or left before.
            if is_foreign(error):
                raise
            return
        if self.recording.is_retired:
            surface()

    # -- when the ring is full, or nothing is recorded any more ----------------------------------

    def payload(self, span: int, content: Mapping[str, Any]) -> bool:
        """Write the payload of the row that follows; False if it had to be dropped."""
        return not self.recording.is_retired and self._journal.payload(span, content)

    def renew(self, lease: Any, lost: Word = Word.LOST_RING_FULL) -> int:
        """Return a slot under the next lease; 0 if the ring is full or nothing is recorded."""
        return 0 if self.recording.is_retired else self._journal.renew(lease, lost)

    # -- half entered, half left -----------------------------------------------------------------

    @at_once
    def rescue_enter(self, section: SectionContext, error: BaseException, above: Any) -> None:
        """Recover from a failed entering: open the section without a table entry, or not at all."""
        try:
            # pop() of the empty table: all is set but ``at``, ``t0`` and the token.
            is_full = isinstance(error, IndexError) and not self._journal.free
            if is_full and not self.recording.is_retired and not is_foreign(error):
                self._journal.count(Word.LOST_OPEN)
                section.at = NO_ENTRY
                section.t0 = time.monotonic_ns()
                self.make_current(section)
                return
            self.withdraw(section, above)
        except BaseException as another:  # noqa: BLE001 - the callee decides
            try_again(self.withdraw, section, above)
            internal_error(another)
        internal_error(error)  # raises an exception of the program

    def withdraw(self, section: SectionContext, above: Any) -> None:
        """Undo the entering of a section in which nothing was."""
        switch_off(section)
        if CURRENT.get() is section:
            CURRENT.set(above)  # not by its token, which may not have been stored yet
        section.at = getattr(section, "at", 0)  # interrupted before it was set
        self.forget(section)

    @at_once
    def rescue_exit(
        self,
        section: SectionContext,
        t1: int,
        slot: int,
        problem: BaseException,
        error: BaseException | None,
    ) -> None:
        """Recover from a failed leaving: complete the rest of it, once.

        Args:
            section: the section that is left.
            t1: its end; 0: unknown, and unknown whether it is this one.
            slot: the slot to which its row was being written; 0: none yet.
            problem: the exception that interrupted leaving.
            error: the exception that the section is left by.
        """
        try:
            self._finish_rest(section, t1, slot, error)
        except BaseException as another:  # noqa: BLE001 - the callee decides
            try_again(self._finish_rest, section, t1, slot, error)
            internal_error(another)
        if is_foreign(problem):
            raise problem
        if not isinstance(problem, EXPECTED):
            internal_error(problem)

    def _finish_rest(
        self, section: SectionContext, t1: int, slot: int, error: BaseException | None
    ) -> None:
        if slot != BY_SLOW_PATH:
            chosen = section if t1 else self.one_left(section)
            self.finish(chosen, t1 or time.monotonic_ns(), slot, error)

    def one_left(self, section: SectionContext) -> SectionContext:
        """Return the section that ends when ``section`` is left."""
        return section

    def finish(
        self, section: SectionContext, t1: int, slot: int, error: BaseException | None
    ) -> None:
        """Leave a section as far as it has not been left yet."""
        switch_off(section)
        if getattr(section, "at", 0) and not self.recording.is_retired:
            self.leave(section)  # does nothing where the token has been used
            self.forget_published(section, slot)
            self.close(section, t1, kind_of(error))

    def finish_rest(self, now: int) -> None:
        """Perform the work that was deferred for want of stack, in its original order.

        Raises:
            RecursionError: there is too little stack here, too; the rest stays deferred.
        """
        rest: Any = None  # in reverse order, without a call
        while self.unfinished is not None:
            finish, arguments, self.unfinished = self.unfinished
            rest = finish, arguments, rest
        try:
            while rest is not None:
                finish, arguments, _ = rest
                finish(now, *arguments)
                rest = rest[2]
        except RecursionError:
            while rest is not None:
                finish, arguments, rest = rest
                self.unfinished = finish, arguments, self.unfinished
            raise

    def finish_late(
        self, now: int, section: SectionContext, at: int, t1: int, slot: int, kind: Any
    ) -> None:
        """Leave a section that was not left; if its end is unknown, it ended ``now``."""
        section.at = at
        if CURRENT.get() is section:
            self.leave(section)
        self.forget_published(section, max(slot, 0))
        self.close(section, t1 or now, None if kind is None else [kind.__name__, "", ""])

    def _is_published(self, slot: int) -> bool:
        shape = self._journal.shape
        at = shape.ring_at + ((slot & (shape.rows - 1)) << 6)
        return bool(self._journal.words[(at >> 3) + 7] == slot)


def kind_of(error: BaseException | None) -> list[str] | None:
    """Return the description of an exception where only its type may be recorded."""
    return None if error is None else [type(error).__name__, "", ""]


def has_failed(error: list[str] | None, extra: Extra | None) -> bool:
    """Return whether a section failed: by the status that was set, else by an exception."""
    if extra is not None and extra.status is not None and extra.status[0] == _OK:
        return False
    return error is not None or (extra is not None and extra.status is not None)


def switch_off(section: SectionContext) -> None:
    """Switch off a profiler that is on the section."""
    extra = section.extra
    if extra is not None and extra.profiled is not None:
        extra.profiled.off()


def _add_recorded(content: dict[str, Any], extra: Extra, duration_ns: int) -> None:
    if extra.attributes:
        content["a"] = {**extra.attributes, **content.get("a", {})}
    if extra.profiled is not None and (told := extra.profiled.attributes()):
        content["a"] = {**content.get("a", {}), **told}
    for key, field in _RECORDED:
        if value := getattr(extra, field):
            content[key] = value
    if extra.usage is not None:
        extra.usage.end()  # for a section that other code ends
        extra.usage.limit_cpu(duration_ns)
        if extra.usage.figures:
            content["u"] = extra.usage.figures
