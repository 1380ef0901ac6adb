"""Reader of a journal: what its process has written since the last look.

All results are copies: the process continues to write, and the agent frees what it has read.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.contents import parse_entry
from otel_mlperf.journal.cut_file import make_whole
from otel_mlperf.journal.layout import (
    CHUNK_BYTES,
    HEADER_BYTES,
    MAGIC,
    MAX_ENTRIES,
    META_AT,
    ROW_BYTES,
    WORD,
    Shape,
    State,
    Word,
    is_closed,
)
from otel_mlperf.journal.meta import LONGEST_RUN_NS, JournalMeta, has_owner
from otel_mlperf.journal.moved_rows import count_moved, drop_moved, read_moved
from otel_mlperf.journal.ring_scan import ROW_TYPE, PayloadParts, RingScan
from otel_mlperf.portability import CLOEXEC, NOFOLLOW

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from otel_mlperf.journal.ring_scan import Rows

_TIMES: Final = (Word.STEP_TIME, Word.END_TIME, Word.BEAT)
_LEAST_NS: Final = 100
"""What anything takes that is counted: Python code comes to it one at a time."""
_AT_ONCE: Final = 1 << 20
"""So many are believed at any time."""
OPEN_TYPE: Final = np.dtype(
    [(field, "<u8") for field in ("span", "parent", "root", "track", "start", "name")]
)


def as_rows(table: Rows, end_ns: int) -> Rows:
    """Open sections as the rows that they would have had at ``end_ns``."""
    rows = np.zeros(len(table), ROW_TYPE)
    for field in ("span", "parent", "root", "track", "start", "name"):
        rows[field] = table[field]
    rows["end"] = np.maximum(np.uint64(end_ns), table["start"])
    return rows


class JournalReader:
    """The reading side of one journal.

    Args:
        path: the file; opened here unless ``buffer`` is given.
        buffer: the writer's own mapping. A process that writes a journal must not open its file
            again: closing any descriptor of it would drop the lock.
        is_writable: whether the words of the reader may be stored; else the file is mapped for
            reading only.

    Raises:
        JournalError: not a journal, or not all there.
    """

    def __init__(
        self, path: str, buffer: mmap.mmap | None = None, *, is_writable: bool = True
    ) -> None:
        self.path = path
        self._fd, cut_at = -1, 0
        if buffer is None:
            self._fd, buffer, cut_at = _map(path, is_writable=is_writable)
        self._map = buffer
        self.words = memoryview(buffer).cast("Q")
        try:
            if self.words[Word.MAGIC] != MAGIC:
                raise JournalError(f"reading the journal {path}: it does not start as one does")
            self.meta = self._read_meta()
            self._lay_out()
        except JournalError:
            self._release()
            raise
        self._note_cut(cut_at)

    def _lay_out(self) -> None:
        shape = Shape.of_size(len(self._map))
        if shape is None:
            raise JournalError(
                f"reading the journal {self.path}: no journal has {len(self._map):,} bytes"
            )
        self._table = np.frombuffer(self._map, OPEN_TYPE, shape.open, shape.table_at)
        self._cells = np.frombuffer(self._map, "<u8", shape.cells * 8, shape.cells_at)
        chunks = np.frombuffer(self._map, ROW_TYPE, shape.chunks, shape.entries_at)
        self.ring = RingScan(np.frombuffer(self._map, ROW_TYPE, shape.rows, shape.ring_at))
        self._chunks = RingScan(chunks)
        self._moved, self._moved_gone = count_moved(self.path), 0
        self._was_closed = False
        self._unlike = 0
        self._entries = PayloadParts(parse_entry)

    def mend(self) -> bool:
        """Gives a file that was cut short its length back; False if that cannot be."""
        self._note_cut(make_whole(self._fd))
        return not self.is_cut

    def _note_cut(self, cut_at: int) -> None:
        if cut_at:
            shape = Shape.of_rows(self.rows)
            rows, chunks = cut_at - shape.ring_at, cut_at - shape.entries_at
            self.ring.cut_off(rows // ROW_BYTES, self.word(Word.TAIL) + self.rows)
            self._chunks.cut_off(chunks // CHUNK_BYTES, shape.chunks)

    def _read_meta(self) -> JournalMeta:
        (length,) = struct.unpack_from("<I", self._map, META_AT)
        text = self._map[META_AT + 4 : min(META_AT + 4 + length, HEADER_BYTES)]
        # One letter of it may name another folder, which somebody else's files are in.
        if zlib.crc32(text) != self.words[Word.META_CHECK]:
            raise JournalError(
                f"reading the journal {self.path}: what it says of its run was written over, or "
                "is of another version; delete it to leave it out"
            )
        try:
            return msgspec.msgpack.decode(text, type=JournalMeta)
        except ValueError as error:
            raise JournalError(f"reading the journal {self.path}: metadata: {error}") from error

    def resume(self, first: int, holes: Iterable[int]) -> None:
        """Goes on where another reader's durable record ended."""
        free = self.word(Word.TAIL)  # a hole below it was given up: its place may be written again
        self.ring.next, self.ring.holes = first, sorted(h for h in holes if h >= free)

    def go_on_after(self, other: JournalReader) -> None:
        """Reads on where the reader of the file stood that this one has taken the place of."""
        self.resume(other.ring.next, other.ring.holes)
        # What was said in the old file after it was copied; all of it only grows.
        for word in (Word.DURABLE, Word.STORED, Word.TABLES_UNTIL):
            self.set_word(word, max(self.word(word), other.word(word)))

    def take(self, *, final: bool = False) -> Rows:
        """Rows of every kind that were published since the last call."""
        # Read before the rows: CLOSED is stored after the last of them, so a look that begins
        # when it is there has seen all. Read afterwards, rows stored in between would be given
        # up.
        self._was_closed = is_closed(self.words)
        if self.ring.next > self._moved:
            return self.ring.take(final=final)
        moved = self._take_moved()
        return np.concatenate((moved, self.ring.take(final=final)))

    def _take_moved(self) -> Rows:
        """Rows that were moved out of the ring before anybody could read them."""
        text, first = b"", self.ring.next
        self.ring.next = self._moved + 1
        with suppress(OSError):
            text = read_moved(self.path, first, self._moved)
        rows: Rows = np.frombuffer(text[: len(text) // ROW_BYTES * ROW_BYTES], ROW_TYPE)
        self._moved_gone += self.ring.next - first - len(rows)
        return rows

    def drop_moved(self, next_: int) -> None:
        """Removes the file of the rows that were moved, if tables hold all in front of a slot."""
        if 0 < self._moved < next_:
            drop_moved(self.path)

    def new_entries(self) -> dict[int, list[Any]]:
        """What was registered since the last call: entry number to content (see ``layout``)."""
        self._entries.feed(self._chunks.take())
        ready, self._entries.ready = self._entries.ready, {}
        return ready

    def cells(self) -> NDArray[np.uint64]:
        """A copy of the cells in use, eight words each, the entry number first."""
        # A cell's entry number is stored when it is taken and cells are taken in order, so those
        # in use stand together, unless one is being taken right now.
        cells = self._cells.reshape(-1, 8)
        used = int(np.count_nonzero(cells[:, 0]))
        return cells[:used].copy() if cells[:used, 0].all() else cells[cells[:, 0] != 0]

    def open_sections(self) -> Rows:
        """A copy of the sections that are open; a row may have been published for some of them."""
        table = self._table.copy()
        # The name is stored last: without it a kill came in between, and nothing had begun.
        is_open: Rows = table[(table["span"] != 0) & (table["name"] != 0)]
        # Somebody may have written over it: such a time would be the end of everything.
        begun = is_open["start"]
        can_be = (begun >= np.uint64(self.meta.earliest_ns)) & (
            begun < np.uint64(self.meta.latest_ns)
        )
        can_be &= is_open["name"] <= MAX_ENTRIES
        self._unlike = int(np.count_nonzero(~can_be))
        sections: Rows = is_open[can_be]
        return sections

    def damaged(self) -> int:
        """How many sections were written over that nobody will hear of otherwise.

        Those of the last look at the open table, and rows that no look has found.
        """
        return self._unlike + self.ring.damaged()

    def take_gone(self) -> int:
        """How many more rows were cut off the file, or removed, before a look reached them."""
        head = self.word(Word.HEAD) if is_closed(self.words) else 0
        gone, self._moved_gone = self._moved_gone, 0
        return gone + self.ring.take_gone(min(head, self.ring.next))

    def damaged_entries(self) -> int:
        """How many more entries are damaged or cut off: what they stood for is called ``other``."""
        count, self._entries.damaged = self._entries.damaged, 0
        return count + self._chunks.take_gone()

    @property
    def rows(self) -> int:
        """How many the ring has room for, whatever has been written over its header since."""
        return len(self.ring)

    def word(self, word: Word) -> int:
        """One header word."""
        return int(self.words[word])

    def counted(self, words: Iterable[Word]) -> dict[int, int]:
        """Those of the words that are not 0, and can be: nobody counts as far as chance does."""
        values = ((word, self.word(word)) for word in words)
        return {int(word): value for word, value in values if 0 < value < self._limit(word)}

    def _limit(self, word: Word) -> int:
        if word in _TIMES:
            return self.meta.latest_ns
        if word == Word.STATE:
            return State.CLOSED + is_closed(self.words)
        if word == Word.WATCH_TIME:
            return self._lasted_ns
        return 2 if word == Word.FAILED else self._lasted_ns // _LEAST_NS + _AT_ONCE

    @property
    def _lasted_ns(self) -> int:
        lasted_ns = time.monotonic_ns() - self.meta.monotonic_ns
        # Negative: written before the machine was started.
        return lasted_ns if lasted_ns >= 0 else LONGEST_RUN_NS

    def set_word(self, word: Word, value: int) -> None:
        """Stores one of the words that belong to the reader."""
        self.words[word] = value

    def free(self) -> None:
        """Makes room: every slot that was read may be written again, holes and later ones not."""
        # One 8-byte store, after everything below it was copied: the writer sees room only then.
        self.words[Word.TAIL] = max(self.ring.freeable(), self._moved + 1)

    @property
    def is_closed(self) -> bool:
        """Whether the last look began when all rows were written, and has reached them."""
        return self._was_closed and self.ring.next > self.word(Word.HEAD)

    @property
    def is_pressing(self) -> bool:
        """Whether a look should come soon: it fills up, has ended, or was cut short."""
        return self.is_cut or not self.is_running or self.ring.is_filling()

    @property
    def is_running(self) -> bool:
        """Whether its process still records: it lives, and has not closed the journal."""
        return self.is_owned and not is_closed(self.words)

    @property
    def is_owned(self) -> bool:
        """Whether the process that made the journal still lives (see ``has_owner``)."""
        return self._fd < 0 or has_owner(self._fd, self.word(Word.PID))

    @property
    def is_removed(self) -> bool:
        """Whether the file has no name any more; what is mapped here is read on."""
        return self._fd >= 0 and not os.fstat(self._fd).st_nlink

    @property
    def is_cut(self) -> bool:
        """Whether the file was made shorter: a look into what is gone would be the end (SIGBUS)."""
        return self._fd >= 0 and os.fstat(self._fd).st_size < len(self._map)

    def close(self) -> None:
        """Gives up the mapping; every array taken from here was a copy."""
        del self._table, self._cells, self.ring, self._chunks
        self._release()

    def _release(self) -> None:
        self.words.release()
        if self._fd >= 0:
            self._map.close()
            os.close(self._fd)


def _map(path: str, *, is_writable: bool) -> tuple[int, mmap.mmap, int]:
    # Only who frees slots maps the file for writing: a passer-by cannot harm the program.
    mode, access = os.O_RDONLY, mmap.ACCESS_READ
    if is_writable:
        mode, access = os.O_RDWR, mmap.ACCESS_WRITE
    try:
        fd = os.open(path, mode | CLOEXEC | NOFOLLOW)
    except OSError as error:
        raise JournalError(f"reading the journal {path}: {error.strerror}") from error
    try:
        # No link is followed and the size is checked before it is mapped: the folder may be one
        # that others can write to, and a file that is too short would raise SIGBUS at the first
        # look.
        cut_at = make_whole(fd) if is_writable else 0
        size = os.fstat(fd).st_size
        if size < HEADER_BYTES + ROW_BYTES or size % WORD:
            raise JournalError(f"reading the journal {path}: its {size} bytes are none")
        return fd, mmap.mmap(fd, size, access=access), cut_at
    except (OSError, ValueError) as error:
        os.close(fd)
        raise JournalError(f"reading the journal {path}: {error}") from error
    except JournalError:
        os.close(fd)
        raise
