"""Thread that makes room in the journals while the agent is still being loaded.

Loading the agent costs half a second of CPU time, and lasts longer on a machine whose cores are all
busy. A training process that starts with a burst can fill its ring before that. This thread
therefore starts first and imports only the standard library. It moves the rows of journals that no
agent has read yet into a file next to each journal (see ``journal.journal_folder``), where readers
find them.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from typing import TYPE_CHECKING, Final

from otel_mlperf.journal.journal_folder import count_moved, is_own, journals_in, moved_path
from otel_mlperf.journal.layout import MAGIC, ROW_BYTES, WORD, Shape, Word, stores_in_order
from otel_mlperf.portability import CLOEXEC, NOFOLLOW
from otel_mlperf.whole_file import open_private

if TYPE_CHECKING:
    from pathlib import Path

_PAUSE_S: Final = 0.01
_BLOCK: Final = 2048
_SHARE: Final = 8
"""A write can use at most this fraction (1/8) of the file system's free space."""
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class FirstLook(threading.Thread):
    """Thread that moves rows out of the journals of one folder until the agent reads them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="otel_mlperf first look", daemon=True)
        self._folder = folder
        self._rings: dict[str, _Ring] = {}
        self._unreadable: set[str] = set()
        """Journals that cannot be read. Their rows stay in the ring, and the agent reports the
        journals."""
        self._ended = threading.Event()

    def run(self) -> None:
        """Move rows repeatedly until the thread is stopped."""
        while True:
            self.look()
            if self._ended.wait(_PAUSE_S):
                return

    def look(self) -> None:
        """Move the rows that are published now, in all journals of the folder."""
        for path in map(str, journals_in(self._folder) if is_own(self._folder) else ()):
            if path in self._unreadable:
                continue
            try:
                ring = self._rings.get(path) or _open(path)
                if ring is not None:
                    self._rings[path] = ring
                    ring.move()
            except (OSError, ValueError):
                self._unreadable.add(path)

    def stop(self) -> None:
        """End the thread, if it was started. After this, only the agent frees slots."""
        self._ended.set()
        if self.is_alive():
            self.join()
        self._rings.clear()


def _open(path: str) -> _Ring | None:
    fd = os.open(path, os.O_RDWR | CLOEXEC | NOFOLLOW)
    try:
        shape = Shape.of_size(os.fstat(fd).st_size)
        buffer = mmap.mmap(fd, shape.size) if shape else None
    finally:
        os.close(fd)
    if shape is None or buffer is None or memoryview(buffer).cast("Q")[Word.MAGIC] != MAGIC:
        return None
    return _Ring(path, shape, buffer, in_order=stores_in_order())


class _Ring:
    """Ring of one journal, from which rows are moved up to the first slot that is not published.

    If ``in_order`` is False, the processor can make a row's last word visible before its other
    words. A row is then moved only if the previous poll has seen the row too.
    """

    def __init__(self, path: str, shape: Shape, buffer: mmap.mmap, *, in_order: bool) -> None:
        self._path, self._shape, self._in_order = path, shape, in_order
        self._bytes = memoryview(buffer)
        self._words = self._bytes.cast("Q")
        last_of_row = (shape.ring_at + ROW_BYTES) // WORD - 1
        self._numbers = self._words[last_of_row :: ROW_BYTES // WORD]
        # An earlier agent that was killed while loading may have moved rows already.
        self._next = self._seen = count_moved(path) + 1

    def move(self) -> None:
        if os.stat(self._path).st_size < self._shape.size or self._words[Word.BEAT]:
            raise ValueError(f"another process reads {self._path}, or the file is truncated")
        end = self._end_of_rows()
        # Rows that the previous poll has also seen are complete on any processor.
        until, self._seen = end if self._in_order else min(end, self._seen), end
        if until > self._next:
            self._write(self._next, until)
            # A single 8-byte store, after all rows below it were copied.
            self._words[Word.TAIL] = self._next = until

    def _end_of_rows(self) -> int:
        at, rows = self._next, self._shape.rows
        while at < self._next + rows:
            place = at & (rows - 1)
            numbers = self._numbers[place : min(place + _BLOCK, rows)].tolist()
            if numbers != list(range(at, at + len(numbers))):
                # Also stops at rows of the previous round, which have lower numbers.
                return next(at + i for i, number in enumerate(numbers) if number != at + i)
            at += len(numbers)
        return at

    def _write(self, first: int, end: int) -> None:
        fd = open_private(moved_path(self._path), _APPEND)
        try:
            room = os.fstatvfs(fd)
            if (end - first) * ROW_BYTES > room.f_bavail * room.f_frsize // _SHARE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # Truncate to whole rows: a killed writer may have left a partial row.
            os.ftruncate(fd, (first - 1) * ROW_BYTES)
            at, rows = first & (self._shape.rows - 1), end - first
            until_wrap = min(rows, self._shape.rows - at)
            _write_whole(fd, self._rows_at(at, until_wrap))
            _write_whole(fd, self._rows_at(0, rows - until_wrap))
        finally:
            os.close(fd)

    def _rows_at(self, place: int, count: int) -> memoryview:
        begin = self._shape.ring_at + place * ROW_BYTES
        return self._bytes[begin : begin + count * ROW_BYTES]


def _write_whole(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]
