"""What does a journal show to a passer-by, who takes nothing and writes nothing?

The file is mapped for reading only. Rows that the agent has freed are still there until newer ones
take their places, so the last few thousand can be looked at without it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.layout import HEADER_BYTES, Shape, State, Word
from otel_mlperf.journal.reader import ROW_TYPE, Reader

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mlperf.journal.meta import JournalMeta
    from otel_mlperf.journal.reader import Rows


class Glance:
    """One look at one journal.

    Raises:
        JournalError: it has gone, is no journal, or belongs to another user.
    """

    def __init__(self, path: Path) -> None:
        self._fd, self._map = _map(path)
        try:
            self._reader = Reader(str(path), self._map)
        except JournalError:
            os.close(self._fd)  # the mapping goes with the error, which still points into it
            raise
        shape = Shape(*(self.word(w) for w in (Word.ROWS, Word.CELLS, Word.OPEN, Word.CHUNKS)))
        self._at, self._rows = shape.ring_at, shape.rows
        self.entries: dict[int, list[Any]] = self._reader.new_entries()
        """What numbers stand for (see ``layout``)."""

    @property
    def meta(self) -> JournalMeta:
        """Whose journal it is."""
        return self._reader.meta

    @property
    def is_running(self) -> bool:
        """Whether its process still records: it holds a lock on the file, and has not closed it."""
        ask = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        (kind, *_) = struct.unpack("hhqqi", fcntl.fcntl(self._fd, fcntl.F_GETLK, ask))
        return bool(kind != fcntl.F_UNLCK) and self.word(Word.STATE) == State.RUNNING

    def word(self, word: Word) -> int:
        """One header word."""
        return self._reader.word(word)

    def open_sections(self) -> Rows:
        """A copy of the sections that are open."""
        return self._reader.open_sections()

    def newest_rows(self, most: int) -> Rows:
        """A copy of at most so many rows of any kind, the newest, in the order of their slots."""
        ring = np.frombuffer(self._map, ROW_TYPE, self._rows, self._at)
        newest = int(ring["seq"].max())
        first = max(1, newest - min(most, self._rows) + 1)
        slots = np.arange(first, newest + 1, dtype=np.uint64)
        at = slots & np.uint64(self._rows - 1)
        rows: Rows = ring[at]
        # Whole before and after the copy: nothing was written over it meanwhile.
        whole: Rows = rows[(rows["seq"] == slots) & (ring["seq"][at] == slots)]
        return whole

    def close(self) -> None:
        """Gives up the file."""
        self._reader.close()
        self._map.close()
        os.close(self._fd)


def _map(path: Path) -> tuple[int, mmap.mmap]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise JournalError(f"looking at the journal {path}: {error.strerror}") from error
    size = os.fstat(fd).st_size
    if size < HEADER_BYTES or size % 8:
        os.close(fd)
        raise JournalError(f"looking at the journal {path}: only {size} bytes")
    return fd, mmap.mmap(fd, size, access=mmap.ACCESS_READ)
