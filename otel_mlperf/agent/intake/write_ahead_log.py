"""How do events survive the agent?

Segments ``wal-00000001`` in the agent's folder, append-only: each record is its length, a CRC-32
and MessagePack. A record counts once it is whole; what follows a torn one, or one that is no event,
is not read. A segment is removed when a state that contains it has been written.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf.agent.model.events import Event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_FRAME: Final = struct.Struct("<II")
_PREFIX: Final = "wal-"


class Log:
    """The event log in ``folder``; ``segment`` is the number of the one that is written."""

    def __init__(self, folder: Path, segment: int) -> None:
        self._folder = folder
        self.segment = segment
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Event).decode
        self._fd = -1
        self.failed = 0
        """Records that the disk refused."""

    def replay(self) -> Iterator[Event]:
        """Every whole event from ``segment`` on; the next append starts a new segment."""
        for number, path in self._segments():
            if number >= self.segment:
                yield from self._read(path)
                # Never appended to: what lies behind a torn end would not be read.
                self.segment = number + 1

    def _read(self, path: Path) -> Iterator[Event]:
        data = memoryview(path.read_bytes())
        at = 0
        while at + _FRAME.size <= len(data):
            length, check = _FRAME.unpack_from(data, at)
            text = data[at + _FRAME.size : at + _FRAME.size + length]
            # A crash in the middle of a write: what it held was not acted upon yet, and its rows
            # are still in the journals.
            if len(text) < length or zlib.crc32(text) != check:
                return
            try:
                event = self._decode(text)
            except (msgspec.DecodeError, ValueError):
                # Zeros, which a power cut leaves behind the end, have the checksum of nothing.
                return
            yield event
            at += _FRAME.size + length

    def append(self, events: Iterable[Event]) -> bool:
        """Writes events in one call; False if the disk refused them (counted)."""
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
            # What follows a torn record is not read: it is taken back, which needs no room.
            os.ftruncate(fd, size)
            return False
        return True

    def sync(self) -> None:
        """Asks the disk to keep what was written even if the machine stops."""
        if self._fd >= 0:
            os.fdatasync(self._fd)

    def after_all(self) -> int:
        """The number behind every segment that is there, whatever a state says."""
        return max([0, *(number for number, _ in self._segments())]) + 1

    def next_segment(self) -> int:
        """Ends the segment and returns the number of the next one."""
        self.close()
        self.segment += 1
        return self.segment

    def drop_before(self, segment: int) -> None:
        """Removes the segments in front of ``segment``: a state contains them."""
        for number, path in self._segments():
            if number < segment:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Closes the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        if self._fd < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._fd = os.open(self._folder / f"{_PREFIX}{self.segment:08d}", flags, 0o600)
        return self._fd

    def _segments(self) -> list[tuple[int, Path]]:
        numbered = ((p.name.removeprefix(_PREFIX), p) for p in self._folder.glob(f"{_PREFIX}*"))
        # Somebody's copy of one is not ours to read, nor to remove.
        return sorted((int(number), p) for number, p in numbered if number.isdecimal())


def _write_whole(fd: int, data: bytearray) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
