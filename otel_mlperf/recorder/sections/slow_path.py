"""Slow path that opens, closes and exits sections where cost does not matter.

The fast path in ``section`` falls back on this module, and the recorder's own sections use it. The
slow path also completes operations of the fast path that failed: because of an interrupt (Ctrl-C),
a full open table, or a token of another context. The section is then opened or closed exactly once,
and exceptions of the program propagate.
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

# Where native "L" and "Q" are equal, packing "L" is a quarter faster.
IS_NATIVE = sys.byteorder == "little" and struct.calcsize("@L") == struct.calcsize("<Q")
# The open table's entry, with parent, root and track as bytes, packed once for all children.
OPEN_ENTRY = struct.Struct("@L24sLL" if IS_NATIVE else "<Q24sQQ")
assert OPEN_ENTRY.size == OPEN.size
_OPEN_START = 4
"""Index of the start time in an entry of the open table, in words of 8 bytes."""
EXPECTED = (RecursionError, IndexError, AttributeError, ValueError, RuntimeError)
"""Exceptions that ``__exit__`` handles as expected: recursion limit, NO_ENTRY as an index, exit
without enter, a token of another context. Any other exception is an internal error.
"""
_OK = StatusCode.OK.value
_RECORDED = (
    ("l", "links"), ("x", "excluded_ns"), ("s", "status"), ("v", "events"), ("w", "dropped_events"),
    ("r", "is_parent_remote"),
)  # fmt: skip
"""Keys of a payload, and the corresponding fields of ``Extra``."""
BY_SLOW_PATH = -1
"""Value for a slot that means: the slow path exits the section, even if it raises."""


class Stamps(Protocol):
    """Recorder of stamps: CUDA events at starts and ends of sections.

    Its methods never wait, and raise only exceptions that belong to the program.
    """

    def begin(self) -> Any:
        """Record and return a start stamp; return None if recording is impossible at the moment."""

    def end(self, stamp: Any, section: SectionContext) -> int:
        """Record the end stamp of an open section with start stamp ``stamp``; return row flags."""

    def end_step(self, stamp: Any, step: OpenStep, end_ns: int) -> int:
        """Record the end stamp of a step that ended at ``end_ns``; return flags for the row."""

    def drop(self, stamp: Any) -> None:
        """Discard a start stamp whose end stamp will not be recorded."""


class SlowPath:
    """Slow path of one recording, which opens, closes and exits sections."""

    stamps: Stamps | None = None
    """Set when the program first uses a GPU, if stamps are enabled; None before."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self._journal = recording, recording.journal
        self.unfinished: Any = None
        """Linked list of work that was deferred at the recursion limit, newest first.

        Each node is a tuple of a function, its arguments and the next node; None: no work.
        """

    # -- opening and closing ---------------------------------------------------------------------

    def open(
        self, section: SectionContext, sid: int, chunk: bytes, track: int, t0: int = 0
    ) -> None:
        """Open a section in the open table, without making it current.

        ``chunk`` is the result of ``PARENTS.pack``; ``t0`` is the monotonic start time (0: now).
        """
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
        """Set an earlier start time of an open section in which nothing has been recorded yet."""
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
        """Write the row and payload of an open section, and clear its entry in the open table.

        Args:
            section: the section; nothing is written if it is not open.
            t1: monotonic end time in ns.
            error: type, message and stack of the exception by which the section failed.
            kind: kind of the row.
            more_flags: flags of the row in addition to those of ``section.extra``.
            **content: further items of the payload.
        """
        switch_off(section)  # still on if ``__exit__`` did not run
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
        """Write the payload of a row and return the row's flags; idempotent; see ``close``."""
        extra, flags = section.extra, 0
        if extra is not None:
            _add_recorded(content, extra, t1 - section.t0)
            flags = extra.flags
            self.drop_stamp(extra)  # still present if ``__exit__`` did not run
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
        """Discard the start stamp of a section, if it still has one."""
        if extra.stamp is not None and self.stamps is not None:
            stamp, extra.stamp = extra.stamp, None
            self.stamps.drop(stamp)

    def _write(self, section: SectionContext, t1: int, flags: int, kind: Kind) -> None:
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
        """Clear a section's entry in the open table, whether or not its row was written."""
        at, section.at = section.at, 0
        if at and at != NO_ENTRY and not self.recording.is_retired:
            self._journal.words[at >> 3] = 0
            self._journal.free.append(at)

    def forget_published(self, section: SectionContext, slot: int) -> None:
        """Clear a section's entry if its row is completely written in ``slot``."""
        # A slot may have been drawn without being written: only its number in the row proves it.
        if slot and self._is_published(slot):
            self.forget(section)

    def leave(self, section: SectionContext) -> None:
        """Restore the context that was current before the section."""
        token = getattr(section, "token", None)
        if token is None:
            return
        try:
            CURRENT.reset(token)
        except (ValueError, RuntimeError) as error:
            # Entered in another context (a generator that other code closes), or already exited.
            if is_foreign(error):
                raise
            return
        if self.recording.is_retired:
            surface()

    # -- full ring, ended recording --------------------------------------------------------------

    def payload(self, span: int, content: Mapping[str, Any]) -> bool:
        """Write the payload of the next row; return False if it had to be dropped."""
        return not self.recording.is_retired and self._journal.payload(span, content)

    def renew(self, lease: Any, lost: Word = Word.LOST_RING_FULL) -> int:
        """Return a slot of the next lease; 0 if the ring is full or recording has ended.

        ``lost`` is the journal's counter of rows that are lost if there is no slot.
        """
        return 0 if self.recording.is_retired else self._journal.renew(lease, lost)

    # -- recovery of interrupted enters and exits ------------------------------------------------

    @at_once
    def rescue_enter(self, section: SectionContext, error: BaseException, above: Any) -> None:
        """Recover from a failed ``__enter__``: undo it, or open the section without a table entry.

        The section is opened if the open table was full. ``above`` is the context that was current
        before.
        """
        try:
            # IndexError of pop(): the open table is full. Only ``at``, ``t0`` and ``token`` are not
            # set yet.
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
        """Undo the ``__enter__`` of a section in which nothing was recorded; restore ``above``."""
        switch_off(section)
        if CURRENT.get() is section:
            CURRENT.set(above)  # not by ``section.token``, which may not be set yet
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
        """Recover from a failed ``__exit__``: perform each remaining operation exactly once.

        Args:
            section: the section whose ``__exit__`` was called.
            t1: the monotonic end time; 0 if ``__exit__`` failed before it determined the time and
                which section of a reused handle ends.
            slot: the slot that was drawn for the section's row; 0 if no slot was drawn.
            problem: the exception that interrupted ``__exit__``.
            error: the exception by which the section ends.
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
            chosen = section if t1 else self.section_to_exit(section)
            self.finish(chosen, t1 or time.monotonic_ns(), slot, error)

    def section_to_exit(self, section: SectionContext) -> SectionContext:
        """Return the section that ends when ``section`` is exited; here ``section`` itself."""
        return section

    def finish(
        self, section: SectionContext, t1: int, slot: int, error: BaseException | None
    ) -> None:
        """Perform the remaining operations of a section's exit; arguments: see ``rescue_exit``."""
        switch_off(section)
        if getattr(section, "at", 0) and not self.recording.is_retired:
            self.leave(section)  # does nothing if the token was already used
            self.forget_published(section, slot)
            self.close(section, t1, kind_of(error))

    def finish_rest(self, now: int) -> None:
        """Perform the deferred work in its original order.

        Sections whose end time is unknown end at ``now``.

        Raises:
            RecursionError: the recursion limit is reached again; the remaining work stays deferred.
        """
        rest: Any = None  # reverses the list without a call
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
        """Perform a deferred exit of a section that ends at ``t1`` or, if that is 0, at ``now``.

        ``at`` is its table entry, ``kind`` the type of the exception that left it, or None.
        """
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
    """Return the description of an exception with its type only; None if ``error`` is None."""
    return None if error is None else [type(error).__name__, "", ""]


def has_failed(error: list[str] | None, extra: Extra | None) -> bool:
    """Return whether a section failed; a status that was set to OK overrides an exception."""
    if extra is not None and extra.status is not None and extra.status[0] == _OK:
        return False
    return error is not None or (extra is not None and extra.status is not None)


def switch_off(section: SectionContext) -> None:
    """Switch off the section's profiler, if it has one."""
    extra = section.extra
    if extra is not None and extra.profiled is not None:
        extra.profiled.off()


def _add_recorded(content: dict[str, Any], extra: Extra, duration_ns: int) -> None:
    if extra.attributes:
        content["a"] = {**extra.attributes, **content.get("a", {})}
    if extra.profiled is not None and (about_profile := extra.profiled.attributes()):
        content["a"] = {**content.get("a", {}), **about_profile}
    for key, field in _RECORDED:
        if value := getattr(extra, field):
            content[key] = value
    if extra.usage is not None:
        extra.usage.end()  # not ended before if ``__exit__`` did not run
        extra.usage.limit_cpu(duration_ns)
        if extra.usage.figures:
            content["u"] = extra.usage.figures
