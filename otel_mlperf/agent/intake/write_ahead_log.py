"""Write-ahead log (WAL) of events, from which a restarted agent continues.

The log's segments (``wal-00000001`` and so on, in the agent's folder) are append-only. A record
consists of its length, a CRC-32, and an event in MessagePack. Reading a segment ends at the first
incomplete or invalid record. A segment is removed after a state that contains all of its events was
written.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from otel_mlperf.agent.model.events import Event
from otel_mlperf.errors import StoreError
from otel_mlperf.whole_file import open_private, open_without_links, read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_FRAME: Final = struct.Struct("<II")
_PREFIX: Final = "wal-"
_MAX_BYTES: Final = 1 << 40


class Place(NamedTuple):
    """Start of a record: number of its segment, and byte offset in the segment."""

    segment: int
    at: int = 0


class Log:
    """Event log in ``folder``, which appends to segment number ``segment``.

    The state already contains the first ``at`` bytes of this segment, which ``replay`` skips.
    """

    def __init__(self, folder: Path, segment: int, at: int = 0) -> None:
        self._folder = folder
        self.segment = segment
        self._begin = Place(segment, at)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Event).decode
        self._fd = -1
        self.failed = 0
        """Number of failed ``append`` calls."""

    def replay(self) -> Iterator[Event]:
        """Yield all events of the segments numbered ``self.segment`` or higher, oldest first.

        The first ``append`` after the replay starts a new segment.
        """
        for number, path in self._segments():
            if number >= self.segment:
                at = self._begin.at if self._is_first(number) else 0
                yield from (event for event, _ in self._events(read_regular(path, _MAX_BYTES), at))
                # Never append to an old segment: records after a torn record would not be read.
                self.segment = number + 1
        # If the first segment was removed, skip its number: otherwise the first ``at`` bytes of a
        # new segment with this number would be skipped.
        self.segment += self._is_first(self.segment)

    def _is_first(self, segment: int) -> bool:
        return self._begin.at > 0 and segment == self._begin.segment

    def read(self, begin: Place, size: int) -> list[Event]:
        """Return the appended events in the ``size`` bytes from ``begin``.

        Raises:
            StoreError: the segment was removed or damaged.
        """
        path = self._path(begin.segment)
        try:
            with open(path, "rb", opener=open_without_links) as file:
                data = os.pread(file.fileno(), size, begin.at)
        except OSError as error:
            raise StoreError(f"reading the events in {path}: {error.strerror}") from error
        events = list(self._events(data))
        if not events or events[-1][1] != size:
            raise StoreError(
                f"reading the events in {path}: the file differs from what was written"
            )
        return [event for event, _ in events]

    def _events(self, text: bytes, at: int = 0) -> Iterator[tuple[Event, int]]:
        data = memoryview(text)
        while at + _FRAME.size <= len(data):
            length, check = _FRAME.unpack_from(data, at)
            record = data[at + _FRAME.size : at + _FRAME.size + length]
            # The record was torn by a crash during a write. Its event was not processed, and the
            # rows are still in the journals.
            if len(record) < length or zlib.crc32(record) != check:
                return
            try:
                event = self._decode(record)
            except (msgspec.DecodeError, ValueError):
                # A power failure may leave zeros at the end, which look like an empty record with
                # a valid checksum.
                return
            at += _FRAME.size + length
            yield event, at

    def append(self, events: Iterable[Event]) -> bool:
        """Append events by a single write; return False if writing failed."""
        frames = bytearray()
        for event in events:
            text = self._encode(event)
            frames += _FRAME.pack(len(text), zlib.crc32(text)) + text
        if not frames:
            return True
        try:
            fd = self._open()
            size = os.fstat(fd).st_size
        except OSError:
            self.failed += 1
            return False
        try:
            _write_whole(fd, frames)
        except OSError:
            self.failed += 1
            # Truncate the torn record: otherwise later records would not be read.
            os.ftruncate(fd, size)
            return False
        return True

    @property
    def end(self) -> Place:
        """Return the place at which the next record starts."""
        return Place(self.segment, os.fstat(self._fd).st_size if self._fd >= 0 else 0)

    def handle(self) -> int:
        """Return a duplicate descriptor of the segment; -1 if no segment is open.

        The caller must close the descriptor.
        """
        return os.dup(self._fd) if self._fd >= 0 else -1

    def after_all(self) -> int:
        """Return a segment number that is higher than all existing segment numbers."""
        return max([0, *(number for number, _ in self._segments())]) + 1

    def next_segment(self) -> int:
        """Close the current segment; return the number of the next one."""
        self.close()
        self.segment += 1
        return self.segment

    def drop_before(self, segment: int) -> None:
        """Remove the segments before ``segment``, which the written state contains completely."""
        for number, path in self._segments():
            if number < segment:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the current segment."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        if self._fd < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._fd = open_private(str(self._path(self.segment)), flags)
        return self._fd

    def _path(self, segment: int) -> Path:
        return self._folder / f"{_PREFIX}{segment:08d}"

    def _segments(self) -> list[tuple[int, Path]]:
        numbered = ((p.name.removeprefix(_PREFIX), p) for p in self._folder.glob(f"{_PREFIX}*"))
        # Ignore other files, such as copies of segments, links and pipes.
        return sorted(
            (int(number), p)
            for number, p in numbered
            if number.isdecimal() and stat.S_ISREG(os.lstat(p).st_mode)
        )


def _write_whole(fd: int, data: bytearray) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
