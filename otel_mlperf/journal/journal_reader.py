"""Reader of a journal: rows and entries that are new since the last poll, and all cells.

All results are copies, because the process continues to write and freed slots are overwritten.
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
from otel_mlperf.journal.journal_folder import count_moved, drop_moved, read_moved
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
from otel_mlperf.journal.ring_scan import ROW_TYPE, PayloadParts, RingScan, make_whole
from otel_mlperf.portability import CLOEXEC, NOFOLLOW

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from otel_mlperf.journal.ring_scan import Rows

_TIMES: Final = (Word.STEP_TIME, Word.END_TIME, Word.BEAT)
_MIN_EVENT_NS: Final = 100
"""Minimum time between counted events. An upper bound of counters is computed from it."""
_PLAUSIBLE_COUNT: Final = 1 << 20
"""Counter value that is plausible at any time."""
OPEN_TYPE: Final = np.dtype(
    [(field, "<u8") for field in ("span", "parent", "root", "track", "start", "name")]
)


def as_rows(table: Rows, end_ns: int) -> Rows:
    """Return sections of an open-section table as section rows that end at ``end_ns``."""
    rows = np.zeros(len(table), ROW_TYPE)
    for field in ("span", "parent", "root", "track", "start", "name"):
        rows[field] = table[field]
    rows["end"] = np.maximum(np.uint64(end_ns), table["start"])
    return rows


class JournalReader:
    """Reader of one journal.

    Args:
        path: the file, which is opened unless ``buffer`` is given.
        buffer: the writer's own mapping; None to open the file. The writer must not open the file
            again, because closing any descriptor of the file releases the lock.
        is_writable: whether the reader may store header words (e.g. TAIL). If False, the file is
            mapped for reading only.

    Raises:
        JournalError: the file is not a complete journal.
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
                raise JournalError(
                    f"reading the journal {path}: the file does not start like a journal"
                )
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
                f"reading the journal {self.path}: a journal cannot have a size of "
                f"{len(self._map):,} bytes"
            )
        self._table = np.frombuffer(self._map, OPEN_TYPE, shape.open, shape.table_at)
        self._cells = np.frombuffer(self._map, "<u8", shape.cells * 8, shape.cells_at)
        chunks = np.frombuffer(self._map, ROW_TYPE, shape.chunks, shape.entries_at)
        self.ring = RingScan(np.frombuffer(self._map, ROW_TYPE, shape.rows, shape.ring_at))
        self._chunks = RingScan(chunks)
        self._moved, self._moved_lost = count_moved(self.path), 0
        self._was_closed = False
        self._implausible = 0
        self._entries = PayloadParts(parse_entry)

    def mend(self) -> bool:
        """Restore the length of a truncated file; return False if that is impossible."""
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
        # Verify the metadata: with a damaged path, the agent would write to another folder.
        if zlib.crc32(text) != self.words[Word.META_CHECK]:
            raise JournalError(
                f"reading the journal {self.path}: its description of the run is damaged, or was "
                "written by another version; delete the file to skip the journal"
            )
        try:
            return msgspec.msgpack.decode(text, type=JournalMeta)
        except ValueError as error:
            raise JournalError(f"reading the journal {self.path}: metadata: {error}") from error

    def resume(self, first: int, holes: Iterable[int]) -> None:
        """Continue where another reader stopped: at slot ``first``, with its unread ``holes``."""
        free = self.word(Word.TAIL)  # earlier holes were given up: their slots may be reused
        self.ring.next, self.ring.holes = first, sorted(h for h in holes if h >= free)

    def go_on_after(self, other: JournalReader) -> None:
        """Continue at the position of ``other``, which reads the removed file of this journal."""
        self.resume(other.ring.next, other.ring.holes)
        # The old file may have newer values than the copy; these words only grow.
        for word in (Word.DURABLE, Word.STORED, Word.TABLES_UNTIL):
            self.set_word(word, max(self.word(word), other.word(word)))

    def take(self, *, final: bool = False) -> Rows:
        """Return all rows published since the last call. ``final`` is as in ``RingScan.take``."""
        # Must be read before the rows: CLOSED is stored after the last row, so that a poll that
        # starts after CLOSED sees all rows. Otherwise rows stored in between would be lost.
        self._was_closed = is_closed(self.words)
        if self.ring.next > self._moved:
            return self.ring.take(final=final)
        moved = self._take_moved()
        return np.concatenate((moved, self.ring.take(final=final)))

    def _take_moved(self) -> Rows:
        text, first = b"", self.ring.next
        self.ring.next = self._moved + 1
        with suppress(OSError):
            text = read_moved(self.path, first, self._moved)
        rows: Rows = np.frombuffer(text[: len(text) // ROW_BYTES * ROW_BYTES], ROW_TYPE)
        self._moved_lost += self.ring.next - first - len(rows)
        return rows

    def drop_moved(self, next_: int) -> None:
        """Remove the file of moved rows if the slots of all moved rows are before ``next_``."""
        if 0 < self._moved < next_:
            drop_moved(self.path)

    def new_entries(self) -> dict[int, list[Any]]:
        """Return the entries registered since the last call, content by number (see ``layout``)."""
        self._entries.feed(self._chunks.take())
        ready, self._entries.ready = self._entries.ready, {}
        return ready

    def cells(self) -> NDArray[np.uint64]:
        """Return a copy of the allocated cells: eight words each, the first is the entry number."""
        # Cells are allocated in order, so that allocated cells are contiguous, unless an allocation
        # is in progress.
        cells = self._cells.reshape(-1, 8)
        used = int(np.count_nonzero(cells[:, 0]))
        return cells[:used].copy() if cells[:used, 0].all() else cells[cells[:, 0] != 0]

    def open_sections(self) -> Rows:
        """Return a copy of the open-section table; some of its sections might already have rows."""
        table = self._table.copy()
        # The name is stored last: an entry without it is incomplete.
        is_open: Rows = table[(table["span"] != 0) & (table["name"] != 0)]
        # Exclude overwritten entries: an implausible time would distort all end times.
        starts = is_open["start"]
        can_be = (starts >= np.uint64(self.meta.earliest_ns)) & (
            starts < np.uint64(self.meta.latest_ns)
        )
        can_be &= is_open["name"] <= MAX_ENTRIES
        self._implausible = int(np.count_nonzero(~can_be))
        sections: Rows = is_open[can_be]
        return sections

    def damaged(self) -> int:
        """Return the number of overwritten sections that are not counted elsewhere.

        These are entries in the last copy of the open-section table, and rows in the ring that no
        poll has found.
        """
        return self._implausible + self.ring.damaged()

    def take_lost_count(self) -> int:
        """Return the number of rows lost since the last call in truncated or removed files."""
        head = self.word(Word.HEAD) if is_closed(self.words) else 0
        lost, self._moved_lost = self._moved_lost, 0
        return lost + self.ring.take_lost_count(min(head, self.ring.next))

    def damaged_entries(self) -> int:
        """Return the number of entries found damaged since the previous call of this method.

        A name whose entry is damaged reads as ``other``.
        """
        count, self._entries.damaged = self._entries.damaged, 0
        return count + self._chunks.take_lost_count()

    @property
    def rows(self) -> int:
        """Number of rows in the ring, derived from the file's size, not from the header."""
        return len(self.ring)

    def word(self, word: Word) -> int:
        """Return the value of one header word."""
        return int(self.words[word])

    def counted(self, words: Iterable[Word]) -> dict[int, int]:
        """Return the values of ``words``, except values that are 0 or were overwritten."""
        values = ((word, self.word(word)) for word in words)
        return {int(word): value for word, value in values if 0 < value < self._limit(word)}

    def _limit(self, word: Word) -> int:
        if word in _TIMES:
            return self.meta.latest_ns
        if word == Word.STATE:
            return State.CLOSED + is_closed(self.words)
        if word == Word.WATCH_TIME:
            return self._lasted_ns
        return 2 if word == Word.FAILED else self._lasted_ns // _MIN_EVENT_NS + _PLAUSIBLE_COUNT

    @property
    def _lasted_ns(self) -> int:
        lasted_ns = time.monotonic_ns() - self.meta.monotonic_ns
        # Negative if the journal was written before the last boot.
        return lasted_ns if lasted_ns >= 0 else LONGEST_RUN_NS

    def set_word(self, word: Word, value: int) -> None:
        """Store a header word that the reader owns."""
        self.words[word] = value

    def free(self) -> None:
        """Free the slots that were read, up to the first hole."""
        # A single 8-byte store, after all rows below were copied: the writer may then reuse their
        # slots.
        self.words[Word.TAIL] = max(self.ring.freeable(), self._moved + 1)

    @property
    def is_closed(self) -> bool:
        """Whether the journal is closed, and the last poll has read all of its rows."""
        return self._was_closed and self.ring.next > self.word(Word.HEAD)

    @property
    def is_pressing(self) -> bool:
        """Whether to poll soon: the ring fills up, or the journal has ended or was truncated."""
        return self.is_cut or not self.is_running or self.ring.is_filling()

    @property
    def is_running(self) -> bool:
        """Whether the process still records: it is alive and has not closed the journal."""
        return self.is_owned and not is_closed(self.words)

    @property
    def is_owned(self) -> bool:
        """Whether the process that writes the journal is still alive (see ``has_owner``)."""
        return self._fd < 0 or has_owner(self._fd, self.word(Word.PID))

    @property
    def is_removed(self) -> bool:
        """Whether the file was removed. The mapping stays readable in that case."""
        return self._fd >= 0 and not os.fstat(self._fd).st_nlink

    @property
    def is_cut(self) -> bool:
        """Whether the file was truncated, so that reading the missing part would raise SIGBUS."""
        return self._fd >= 0 and os.fstat(self._fd).st_size < len(self._map)

    def close(self) -> None:
        """Release the mapping. Returned arrays stay valid, because they are copies."""
        del self._table, self._cells, self.ring, self._chunks
        self._release()

    def _release(self) -> None:
        self.words.release()
        if self._fd >= 0:
            self._map.close()
            os.close(self._fd)


def _map(path: str, *, is_writable: bool) -> tuple[int, mmap.mmap, int]:
    # Map for writing only if the reader frees slots, so that other readers cannot damage the
    # journal.
    mode, access = os.O_RDONLY, mmap.ACCESS_READ
    if is_writable:
        mode, access = os.O_RDWR, mmap.ACCESS_WRITE
    try:
        fd = os.open(path, mode | CLOEXEC | NOFOLLOW)
    except OSError as error:
        raise JournalError(f"reading the journal {path}: {error.strerror}") from error
    try:
        # Do not follow links, because other users may be able to write to the folder. Check the
        # size, because accessing a file that is too short raises SIGBUS.
        cut_at = make_whole(fd) if is_writable else 0
        size = os.fstat(fd).st_size
        if size < HEADER_BYTES + ROW_BYTES or size % WORD:
            raise JournalError(
                f"reading the journal {path}: a journal cannot have a size of {size} bytes"
            )
        return fd, mmap.mmap(fd, size, access=access), cut_at
    except (OSError, ValueError) as error:
        os.close(fd)
        raise JournalError(f"reading the journal {path}: {error}") from error
    except JournalError:
        os.close(fd)
        raise
