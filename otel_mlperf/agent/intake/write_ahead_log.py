"""Write-ahead log of events that survives the agent.

Segments ``wal-00000001`` in the agent's folder are append-only. Each record is its length, a CRC-32
and MessagePack. A record counts once it is complete. Nothing is read behind a torn record or one
that is no event. A segment is removed when a state that contains it has been written.
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
from otel_mlperf.whole_file import open_at_once, open_private, read_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_FRAME: Final = struct.Struct("<II")
_PREFIX: Final = "wal-"
_MOST_BYTES: Final = 1 << 40


class Place(NamedTuple):
    """Start of a record: the number of its segment, and the number of bytes before it."""

    segment: int
    at: int = 0


class Log:
    """Event log in ``folder``; ``segment`` is the number of the one that is written.

    A state may contain the beginning of the first segment: its first ``at`` bytes.
    """

    def __init__(self, folder: Path, segment: int, at: int = 0) -> None:
        self._folder = folder
        self.segment = segment
        self._begin = Place(segment, at)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Event).decode
        self._fd = -1
        self.failed = 0
        """Number of records that the disk refused."""

    def replay(self) -> Iterator[Event]:
        """Yield every whole event from ``segment`` upward; the next append starts a new segment."""
        for number, path in self._segments():
            if number >= self.segment:
                at = self._begin.at if self._is_first(number) else 0
                yield from (event for event, _ in self._events(read_regular(path, _MOST_BYTES), at))
                # Never appended to: data behind a torn end would not be read.
                self.segment = number + 1
        # The partly contained segment was removed. A new one of its number would count as partly
        # contained too.
        self.segment += self._is_first(self.segment)

    def _is_first(self, segment: int) -> bool:
        return self._begin.at > 0 and segment == self._begin.segment

    def read(self, begin: Place, size: int) -> list[Event]:
        """Return the events of the ``size`` bytes at ``begin``, which were appended here.

        Raises:
            StoreError: they cannot be read any more.
        """
        path = self._path(begin.segment)
        try:
            with open(path, "rb", opener=open_at_once) as file:
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
        """Yield every whole event from ``at`` upward, and where it ends."""
        data = memoryview(text)
        while at + _FRAME.size <= len(data):
            length, check = _FRAME.unpack_from(data, at)
            record = data[at + _FRAME.size : at + _FRAME.size + length]
            # A crash in the middle of a write: the record was not processed yet, and its rows are
            # still in the journals.
            if len(record) < length or zlib.crc32(record) != check:
                return
            try:
                event = self._decode(record)
            except (msgspec.DecodeError, ValueError):
                # A power cut leaves zeros behind the end. They have the checksum of an empty
                # record.
                return
            at += _FRAME.size + length
            yield event, at

    def append(self, events: Iterable[Event]) -> bool:
        """Write events in one call; return False if the disk refused them (counted)."""
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
            # Nothing behind a torn record is read. The record is truncated, which needs no room.
            os.ftruncate(fd, size)
            return False
        return True

    @property
    def end(self) -> Place:
        """Return where the next record starts."""
        return Place(self.segment, os.fstat(self._fd).st_size if self._fd >= 0 else 0)

    def handle(self) -> int:
        """Return a descriptor of the written file, to be closed by the caller.

        -1 if there is no file.
        """
        return os.dup(self._fd) if self._fd >= 0 else -1

    def after_all(self) -> int:
        """Return the number after every existing segment, whatever a state records."""
        return max([0, *(number for number, _ in self._segments())]) + 1

    def next_segment(self) -> int:
        """End the segment and return the number of the next one."""
        self.close()
        self.segment += 1
        return self.segment

    def drop_before(self, segment: int) -> None:
        """Remove the segments before ``segment``, which a state contains."""
        for number, path in self._segments():
            if number < segment:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
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
        # A copy of a segment by the user is neither read nor removed; nor is a link or a pipe.
        return sorted(
            (int(number), p)
            for number, p in numbered
            if number.isdecimal() and stat.S_ISREG(os.lstat(p).st_mode)
        )


def _write_whole(fd: int, data: bytearray) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
