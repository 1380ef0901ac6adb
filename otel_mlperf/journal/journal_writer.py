"""Writer of a journal, which never blocks.

The writer uses no lock, no allocation, no disk and no thread, because sections also run in signal
handlers and finalizers. Slots are allocated under a *lease*: a counter and an immutable end. All
slots below ``end`` are free. A thread that draws a slot at or above ``end`` needs the next lease,
which exists as soon as the reader has moved the tail. A thread that still has an old lease also has
the old end, so no slot is ever written twice. If there is no room, the row is dropped and counted.

Counters are words of a cast memoryview, written by one 8-byte store each. ``struct.pack_into``
zeroes its target first, so a reader, or a reader after SIGKILL, could see zero. This is
harmless for a row, which is published by its last word, but wrong for a counter.

The writer has a copy of the header's values and stores it again at intervals, because a bug in the
user's native code may have overwritten the header.
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
# Words in the order in which they are stored, except those that steps and profiler windows store.
# MAGIC is last, because readers accept a file with MAGIC as a complete journal. HEAD precedes
# STATE, which makes HEAD valid.
_SAID = tuple(
    word for word in reversed(range(Word.WATCH_TIME + 1)) if not Word.STEP <= word <= Word.ANSWER
)

Pieces = Sequence[tuple[bytes, bytes]]
"""Payload text, cut into parts. Each part is a pair: the two text fields of one row."""


class Lease:
    """Range of slots that may be drawn, with a reference to the next lease if it exists."""

    __slots__ = ("end", "next", "take")

    def __init__(self, start: int, end: int) -> None:
        self.take = itertools.count(start).__next__
        self.end = end
        self.next: dict[int, Lease] = {}


class Journal:
    """Writer of one journal file with ``rows`` rows.

    Attributes:
        words: the whole file as 8-byte integers; the index is the byte offset divided by 8.
        floats: the whole file as 8-byte floats.
        buffer: the whole file, for ``pack_into``.
        scratch: memory of the same size that is never read: used for stores after recording has
            ended.
        free: byte offsets of the free entries in the open-section table.
        said: values of the header words as last stored, to restore an overwritten header.

    Raises:
        JournalError: the file exists, or there is no room for it.
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
        self.rewrite_header()

    def rewrite_header(self) -> None:
        """Store the whole header again, in case it was overwritten."""
        self.buffer[META_AT : META_AT + len(self._meta)] = self._meta
        for word in _SAID:
            self.words[word] = self.said[word]

    def say(self, word: int, value: int) -> None:
        """Store ``value`` in a header word."""
        self.said[word] = self.words[word] = value

    def renew(self, lease: Lease, lost: int = Word.LOST_RING_FULL) -> int:
        """Return a slot under a later lease than ``lease``, or 0 if the ring is full.

        In a full ring, the loss is counted in the header word ``lost`` (0: not counted).
        """
        while True:
            # Threads may run this concurrently, each with its own ``lease``. All follow the same
            # chain of leases, so they draw from the same counters.
            later = lease.next.get(0)
            if later is None:
                # Read TAIL each time: the agent moves it whenever it has logged rows.
                end = self.words[Word.TAIL] + self.shape.rows
                # An implausible value means that TAIL was overwritten: the agent will correct it.
                if not lease.end < end <= lease.end + self.shape.rows:
                    if lost:
                        self.count(lost)
                    return 0
                later = lease.next.setdefault(0, Lease(lease.end, end))  # atomic: one successor
            # A delayed thread may store an older lease here. Other threads then follow the chain
            # once more, but no slot is lost or used twice, because counters are never reset.
            self.lease = lease = later
            slot = lease.take()
            if slot < lease.end:
                return slot

    def draw(self, lost: int = Word.LOST_RING_FULL) -> int:
        """Return the next slot, or 0 if the ring is full: then word ``lost`` counts the loss."""
        lease = self.lease
        # itertools.count advances within one bytecode, so that threads and signal handlers never
        # get the same number.
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
        """Write one row; if the ring is full, count the loss in word ``lost`` and return False."""
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
        """Write one row to a slot from ``draw``; do nothing if ``slot`` is 0."""
        if slot:
            at = self.shape.ring_at + ((slot & self._mask) << 6)
            # pack_into zeroes the row first and stores the fields in order, the slot number last. A
            # kill before that leaves a hole. A stale number from the previous round would not match
            # the slot.
            ROW.pack_into(self.buffer, at, start, end, span, parent, root, track, name, flags, slot)

    def payload(self, span: int, content: Mapping[str, object]) -> bool:
        """Write the payload of row ``span`` before that row; return False if nothing is written.

        Values of unsupported types are stored as the name of the type, because ``repr`` could block
        on a GPU. Content that cannot be encoded is dropped and counted; no error is raised.
        """
        return self.put_payload(span, self.pieces(content))

    def pieces(self, content: Mapping[str, object]) -> Pieces:
        """Return pieces for ``put_payload``; () if ``content`` is too long or not encodable."""
        try:
            pieces = _pieces(self._encode(content))
        except Exception as error:  # noqa: BLE001 - a lone surrogate, an integer beyond 64 bits
            raise_foreign(error)
            return ()  # the section is recorded without the payload
        return pieces if len(pieces) <= MAX_PARTS else ()

    def put_payload(self, span: int, pieces: Pieces) -> bool:
        """Write a payload as rows; return False if ``pieces`` is empty or the ring is full."""
        if not pieces:
            self.count(Word.LOST_PAYLOADS)
        # The parts precede their row, so that a reader that sees the row finds them.
        for part, (head, tail) in enumerate(pieces):
            slot = self.draw(Word.LOST_PAYLOADS)
            if not slot:
                return False
            flags = _PAYLOAD | part << PART_SHIFT | len(pieces) << PARTS_SHIFT
            at = self.shape.ring_at + ((slot & self._mask) << 6)
            PAYLOAD.pack_into(self.buffer, at, head, span, tail, flags, slot)
        return bool(pieces)

    def entry(self, content: Sequence[object]) -> int:
        """Register an entry and return its number, or OTHER if no number or room is left."""
        number = self._number()
        pieces = _pieces(self._encode(content))
        if number > MAX_ENTRIES or not self._write_chunks(number, pieces):
            self.count(Word.LOST_ENTRIES)
            return OTHER
        return number

    def _write_chunks(self, number: int, pieces: Pieces) -> bool:
        # Chunks are never reused, so they need no lease: only the end of the area is a limit.
        for part, (head, tail) in enumerate(pieces):
            chunk = self._chunk()
            if chunk >= self.shape.chunks:
                return False
            flags = _PAYLOAD | part << PART_SHIFT | len(pieces) << PARTS_SHIFT
            at = self.shape.entries_at + chunk * CHUNK_BYTES
            PAYLOAD.pack_into(self.buffer, at, head, number, tail, flags, chunk)
        return True

    def cell(self, entry_number: int) -> int:
        """Allocate a cell and return the index of its first word.

        If no cell is left, count the loss and return 0.
        """
        cell = self._cell()
        if cell >= self.shape.cells or entry_number == OTHER:
            self.count(Word.LOST_CELLS)
            return 0
        word = (self.shape.cells_at + cell * CELL_BYTES) // WORD
        self.words[word] = entry_number
        return word

    def count(self, word: int, by: int = 1) -> None:
        """Add ``by`` to a counter in the header. This is atomic: nothing releases the GIL."""
        self.said[word] += by
        self.words[word] = self.said[word]

    def close(self) -> int:
        """Mark all rows as written; return the last slot that the agent must read."""
        if self.said[Word.STATE] == State.RUNNING:
            # Write an empty row at the last slot: a reader that has passed this row has seen all
            # earlier slots. If the ring is full, the last slot is that of the lease.
            head = self.draw(lost=0) or self.lease.end - 1
            at = self.shape.ring_at + ((head & self._mask) << 6)
            if head < self.lease.end and self.words[(at >> 3) + 7] != head:
                ROW.pack_into(self.buffer, at, 0, 0, 0, 0, 0, 0, 0, 0, head)
            self.said[Word.HEAD], self.said[Word.STATE] = head, State.CLOSED
            self.rewrite_header()
        return self.said[Word.HEAD]

    @property
    def is_removed(self) -> bool:
        """Whether the file was removed, but not truncated: a new reader cannot find it."""
        if not self._file.is_ours():  # the program has closed it
            return not os.path.exists(self.path)
        status = os.fstat(self._file.fd)
        return not status.st_nlink and status.st_size == self.shape.size

    def make_file_again(self) -> None:
        """Create the removed file again, in an existing folder, and continue in the new file.

        Raises:
            JournalError: there is no room. The removed file is still used.
        """
        file = move_to_new(self.path, self.buffer)
        # Keep the removed file open and locked until the next call: until then its reader has found
        # the new file.
        if self._former is not None:
            self._former.close()
        self._former, self._file = self._file, file

    def release(self) -> None:
        """Release memory and lock. Readers then detect that the process no longer records."""
        self.words.release()
        self.floats.release()
        # References from frame variables (e.g. of exception reporters) keep the mapping alive.
        with contextlib.suppress(BufferError):
            close_mapped(self.buffer, self._of_buffer)
        self._file.close()
        if self._former is not None:
            self._former.close()


def _pieces(text: bytes) -> Pieces:
    framed = _LENGTH.pack(len(text)) + text
    parts = -(-len(framed) // PAYLOAD_BYTES)
    return list(_PIECE.iter_unpack(framed.ljust(parts * PAYLOAD_BYTES, b"\0")))


def _type_name(value: object) -> str:
    return f"<{type(value).__qualname__}>"
