"""Writer of a journal, which never waits.

It uses no lock, no allocation, no disk and no thread: sections run in signal handlers and
finalizers too. Slots are drawn under a *lease*, an immutable counter and end. All slots below
``end`` are free to write. A thread that draws a slot at or above it needs the next lease, which
exists as soon as the reader has moved the tail. A thread that still has an old lease sees the old
end, so no slot is ever written twice. If there is no room, the row is dropped and counted.

Counters are words of a cast memoryview, one 8-byte store each. ``struct.pack_into`` zeroes its
target first, and a reader or a SIGKILL in between would see zero. That is harmless for a row, whose
last word publishes it, and wrong for a counter.

The writer keeps a copy of the header's values and stores them again now and then: a stray store of
the program may have hit the header.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from otel_mlperf.errors import JournalError
from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.journal.journal_file import close_mapped, create_mapped, map_scratch, move_to_new
from otel_mlperf.journal.layout import (
    CELL_BYTES,
    CHUNK_BYTES,
    MAGIC,
    MAX_ENTRIES,
    MAX_PARTS,
    META_AT,
    META_BYTES,
    OPEN_BYTES,
    OTHER,
    PART_SHIFT,
    PARTS_SHIFT,
    PAYLOAD,
    PAYLOAD_BYTES,
    ROW,
    WORD,
    Kind,
    Shape,
    State,
    Word,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.own_descriptor import OwnDescriptor

_LENGTH = struct.Struct("<I")
_PIECE = struct.Struct("16s28s")
assert _PIECE.size == PAYLOAD_BYTES
_PAYLOAD = int(Kind.PAYLOAD)
# Without the words that steps and profiler windows store themselves. MAGIC last: a reader accepts
# the file as a journal only when all the rest is there. HEAD comes before STATE, which makes it
# valid.
_SAID = tuple(
    word for word in reversed(range(Word.WATCH_TIME + 1)) if not Word.STEP <= word <= Word.ANSWER
)

Pieces = Sequence[tuple[bytes, bytes]]
"""A payload's text, cut into the two halves of each of its rows."""


class Lease:
    """A range of slots that may be drawn, and the next lease once it exists."""

    __slots__ = ("end", "next", "take")

    def __init__(self, start: int, end: int) -> None:
        self.take = itertools.count(start).__next__
        self.end = end
        self.next: dict[int, Lease] = {}


class Journal:
    """The writing side of one journal file.

    ``words`` and ``floats`` are the whole file as 8-byte integers and floats (index = byte offset
    >> 3), ``buffer`` is the same memory for ``pack_into``, and ``scratch`` is memory of the same
    size that is never read. ``free`` contains the byte offsets of the open table's free entries,
    ``said`` the intended values of the header's words.

    Raises:
        JournalError: the file exists, or the file system has no room for it.
    """

    def __init__(self, path: str, rows: int, meta: JournalMeta) -> None:
        self.path = path
        self.shape = Shape.of_rows(rows)
        self.scratch = map_scratch(path, self.shape.size)
        self.buffer, self._file, self._of_buffer = create_mapped(path, self.shape.size)
        self._former: OwnDescriptor | None = None
        self.words = memoryview(self.buffer).cast("Q")
        self.floats = memoryview(self.buffer).cast("B").cast("d")
        self.said = [0] * (Word.WATCH_TIME + 1)
        self.lease = Lease(1, 1 + rows)
        shape = self.shape
        table = range(shape.table_at, shape.table_at + shape.open * OPEN_BYTES, OPEN_BYTES)
        self.free = list(reversed(table))
        self._mask = rows - 1
        self._chunk = itertools.count(1).__next__
        self._number = itertools.count(OTHER).__next__
        self._cell = itertools.count().__next__
        self._encode = msgspec.msgpack.Encoder(enc_hook=_type_name).encode
        try:
            self._write_header(meta)
        except JournalError:
            self.release()
            os.unlink(path)
            raise
        self.entry(["section", "other", "other", "", {}])

    def _write_header(self, meta: JournalMeta) -> None:
        try:
            text = self._encode(meta)
        except UnicodeEncodeError as error:
            raise JournalError(
                f"creating a journal: the path of the run folder, {meta.run_folder!r}, is not "
                "UTF-8; set OTEL_MLPERF_DIR to a folder with a UTF-8 path"
            ) from error
        if len(text) > META_BYTES:
            raise JournalError(
                f"creating the journal {self.path}: its metadata has {len(text)} bytes, the limit "
                f"is {META_BYTES}: the path of the run folder is too long; set OTEL_MLPERF_DIR to "
                "a shorter path"
            )
        self._meta, said, shape = _LENGTH.pack(len(text)) + text, self.said, self.shape
        said[Word.META_CHECK] = zlib.crc32(text)
        said[Word.ROWS], said[Word.CELLS] = shape.rows, shape.cells
        said[Word.OPEN], said[Word.CHUNKS] = shape.open, shape.chunks
        said[Word.PID], said[Word.STATE] = os.getpid(), State.RUNNING
        said[Word.MAGIC] = MAGIC
        self.words[Word.TAIL] = 1
        self.say_again()

    def say_again(self) -> None:
        """Store the intended header again: something may have overwritten it."""
        self.buffer[META_AT : META_AT + len(self._meta)] = self._meta
        for word in _SAID:
            self.words[word] = self.said[word]

    def say(self, word: int, value: int) -> None:
        """Store one of the header's words."""
        self.said[word] = self.words[word] = value

    def renew(self, lease: Lease, lost: int = Word.LOST_RING_FULL) -> int:
        """Return a slot under a later lease; 0 in a full ring, counted in ``lost`` (0: nowhere)."""
        while True:
            # Several threads may run this concurrently, each with its own ``lease``; they follow
            # one chain, so they draw from the same counters.
            later = lease.next.get(0)
            if later is None:
                # Read each time: the agent moves it whenever it has made rows durable.
                end = self.words[Word.TAIL] + self.shape.rows
                # A slot that was never drawn cannot be free: the word was overwritten, and the
                # reader will correct it.
                if not lease.end < end <= lease.end + self.shape.rows:
                    if lost:
                        self.count(lost)
                    return 0
                later = lease.next.setdefault(0, Lease(lease.end, end))  # atomic: one successor
            # A delayed thread may restore an older lease. That costs other threads a step along the
            # chain and never a slot, because a counter is never reset.
            self.lease = lease = later
            slot = lease.take()
            if slot < lease.end:
                return slot

    def draw(self, lost: int = Word.LOST_RING_FULL) -> int:
        """Return the next slot, or 0 if the ring is full, counted in ``lost``."""
        lease = self.lease
        # itertools.count advances within one bytecode: two threads, or a signal handler in between,
        # never get the same number.
        slot = lease.take()
        return slot if slot < lease.end else self.renew(lease, lost)

    def put(  # noqa: PLR0913, PLR0917 - the fields of a row
        self,
        start: int,
        end: int,
        span: int,
        parent: int,
        root: int,
        track: int,
        name: int,
        flags: int,
        lost: int = Word.LOST_RING_FULL,
    ) -> bool:
        """Write one row; False if the ring is full, counted in ``lost``."""
        slot = self.draw(lost)
        self.store(slot, start, end, span, parent, root, track, name, flags)
        return slot != 0

    def store(  # noqa: PLR0913, PLR0917 - the fields of a row
        self,
        slot: int,
        start: int,
        end: int,
        span: int,
        parent: int,
        root: int,
        track: int,
        name: int,
        flags: int,
    ) -> None:
        """Write one row to a slot that was drawn; 0: nowhere."""
        if slot:
            at = self.shape.ring_at + ((slot & self._mask) << 6)
            # pack_into zeroes the row first and stores the fields in order, the slot's number last.
            # After a kill before that the row is a hole; a stale number of the previous round would
            # not be the slot's.
            ROW.pack_into(self.buffer, at, start, end, span, parent, root, track, name, flags, slot)

    def payload(self, span: int, content: Mapping[str, object]) -> bool:
        """Write the payload of the row of ``span`` that follows; False if it had to be dropped.

        Values that MessagePack does not support are stored as their type's name (a ``repr`` could
        wait for a GPU). Content that cannot be stored at all is dropped and counted, never raised.
        """
        return self.put_payload(span, self.pieces(content))

    def pieces(self, content: Mapping[str, object]) -> Pieces:
        """Return ``content`` as pieces for ``put_payload``; empty if it cannot be stored."""
        try:
            pieces = _pieces(self._encode(content))
        except Exception as error:  # noqa: BLE001 - a lone surrogate, an integer beyond 64 bits
            raise_foreign(error)
            return ()  # the section is recorded without it
        return pieces if len(pieces) <= MAX_PARTS else ()

    def put_payload(self, span: int, pieces: Pieces) -> bool:
        """Write the rows of a payload; False if it is empty or there is no room."""
        if not pieces:
            self.count(Word.LOST_PAYLOADS)
        # The parts come before their row: a reader that sees the row finds them.
        for part, (head, tail) in enumerate(pieces):
            slot = self.draw(Word.LOST_PAYLOADS)
            if not slot:
                return False
            flags = _PAYLOAD | part << PART_SHIFT | len(pieces) << PARTS_SHIFT
            at = self.shape.ring_at + ((slot & self._mask) << 6)
            PAYLOAD.pack_into(self.buffer, at, head, span, tail, flags, slot)
        return bool(pieces)

    def entry(self, content: Sequence[object]) -> int:
        """Register content and return its number; OTHER if no number is left."""
        number = self._number()
        pieces = _pieces(self._encode(content))
        if number > MAX_ENTRIES or not self._write_chunks(number, pieces):
            self.count(Word.LOST_ENTRIES)
            return OTHER
        return number

    def _write_chunks(self, number: int, pieces: Pieces) -> bool:
        # Chunks are never rewritten, so they need no lease: the end of the area is the limit.
        for part, (head, tail) in enumerate(pieces):
            chunk = self._chunk()
            if chunk >= self.shape.chunks:
                return False
            flags = _PAYLOAD | part << PART_SHIFT | len(pieces) << PARTS_SHIFT
            at = self.shape.entries_at + chunk * CHUNK_BYTES
            PAYLOAD.pack_into(self.buffer, at, head, number, tail, flags, chunk)
        return True

    def cell(self, entry_number: int) -> int:
        """Allocate a cell for an entry: index of its first word, 0 if none is left (counted)."""
        cell = self._cell()
        if cell >= self.shape.cells or entry_number == OTHER:
            self.count(Word.LOST_CELLS)
            return 0
        word = (self.shape.cells_at + cell * CELL_BYTES) // WORD
        self.words[word] = entry_number
        return word

    def count(self, word: int, by: int = 1) -> None:
        """Add to one of the header's counters; nothing in between releases the GIL."""
        self.said[word] += by
        self.words[word] = self.said[word]

    def close(self) -> int:
        """Mark all rows as written; return the last slot, which the agent must reach."""
        if self.said[Word.STATE] == State.RUNNING:
            # An empty row at the last slot: all rows drawn earlier are in front of it, and a reader
            # that has passed it has seen everything. In a full ring the last slot of the lease is
            # the last slot.
            head = self.draw(lost=0) or self.lease.end - 1
            at = self.shape.ring_at + ((head & self._mask) << 6)
            if head < self.lease.end and self.words[(at >> 3) + 7] != head:
                ROW.pack_into(self.buffer, at, 0, 0, 0, 0, 0, 0, 0, 0, head)
            self.said[Word.HEAD], self.said[Word.STATE] = head, State.CLOSED
            self.say_again()
        return self.said[Word.HEAD]

    @property
    def is_removed(self) -> bool:
        """Whether its file, which is whole, has no name: a new reader cannot find it."""
        if not self._file.is_ours():  # the program has closed it
            return not os.path.exists(self.path)
        status = os.fstat(self._file.fd)
        return not status.st_nlink and status.st_size == self.shape.size

    def make_file_again(self) -> None:
        """Create its file again under the old name, in an existing folder; rows continue there.

        Raises:
            JournalError: there is no room; rows continue in the file without a name.
        """
        file = move_to_new(self.path, self.buffer)
        # The previous file stays open, and so stays locked, until its reader has found the new
        # file; by the next call it has.
        if self._former is not None:
            self._former.close()
        self._former, self._file = self._file, file

    def release(self) -> None:
        """Release memory and lock: readers of the file then know that its owner is gone."""
        self.words.release()
        self.floats.release()
        # Code that keeps the variables of these frames (exception reporters do) keeps the memory.
        with contextlib.suppress(BufferError):
            close_mapped(self.buffer, self._of_buffer)
        self._file.close()
        if self._former is not None:
            self._former.close()


def _pieces(text: bytes) -> Pieces:
    """Return ``text`` behind its length, cut into the two halves of as many parts as needed."""
    framed = _LENGTH.pack(len(text)) + text
    parts = -(-len(framed) // PAYLOAD_BYTES)
    return list(_PIECE.iter_unpack(framed.ljust(parts * PAYLOAD_BYTES, b"\0")))


def _type_name(value: object) -> str:
    return f"<{type(value).__qualname__}>"
