"""Source of a trace's bytes: plain or gzip files, read as a stream with size limits.

Only regular files are read, plain or gzip (recognised by content, not by name). Damage of the file
ends the stream or is skipped, and is counted: the text before it is never lost.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from typing import TYPE_CHECKING, Final

from otel_mlperf.errors import TraceError
from otel_mlperf.portability import read_at
from otel_mlperf.whole_file import open_to_read

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path
    from types import TracebackType

    from otel_mlperf.kineto.reading.damage import DamageLog

GZIP_MAGIC: Final = b"\x1f\x8b"
PIECE_BYTES: Final = 1 << 20
COMPRESSED_BYTES: Final = 1 << 16
"""Bytes passed to zlib at a time: this much is decompressed again, in smaller pieces, after an
error.
"""
EXPANSION_RATIO: Final = 200
"""Maximum ratio: real traces expand 5 to 40 times, a bomb of zeros a thousand times."""
EXPANSION_FREE_BYTES: Final = 10 << 20


class TraceSource:
    """The uncompressed text of a trace, in pieces."""

    def __init__(self, path: Path, damage: DamageLog, max_bytes: int) -> None:
        self._damage = damage
        self._max_bytes = max_bytes
        self._fd = _open_regular(path)
        self._opened = os.fstat(self._fd)
        self._hash = hashlib.sha256()
        self.path = path
        self.file_bytes = 0
        """Bytes read from the file itself so far."""
        self.text_bytes = 0
        """Bytes returned so far."""
        begin = read_at(self._fd, len(GZIP_MAGIC), 0)
        self.is_gzip = begin == GZIP_MAGIC
        self.is_cut_gzip = begin == GZIP_MAGIC[:1]
        """Whether the file ends within the mark of gzip."""
        self._pieces = self._members() if self.is_gzip else self._plain()

    def __enter__(self) -> TraceSource:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pieces.close()
        os.close(self._fd)

    def read(self) -> bytes:
        """Return the next piece; empty at the end."""
        piece = next(self._pieces, b"")
        room = self._max_bytes - self.text_bytes
        # Cut here and not at the file: for a compressed file only the text's size counts.
        if len(piece) > room:
            self._damage.add("too_large", self._max_bytes, f"more than {self._max_bytes} bytes")
            self._pieces.close()
            piece = piece[:room]
        self.text_bytes += len(piece)
        self._hash.update(piece)
        return piece

    def read_at(self, position: int, size: int) -> bytes:
        """Return a part of a plain file."""
        return read_at(self._fd, size, position)

    def digest(self) -> str:
        """Return the SHA-256 of the text returned so far."""
        return self._hash.hexdigest()

    def _plain(self) -> Generator[bytes, None, None]:
        while piece := self._file(PIECE_BYTES):
            yield piece
        self._check_unchanged()

    def _file(self, size: int) -> bytes:
        """Read the next bytes of the file, up to the size that it had when it was opened."""
        # Never beyond the size at the start: otherwise a file that is being written would be
        # followed for ever.
        piece = os.read(self._fd, min(size, self._opened.st_size - self.file_bytes))
        self.file_bytes += len(piece)
        return piece

    def _check_unchanged(self) -> None:
        now = os.fstat(self._fd)
        before = (self._opened.st_size, self._opened.st_mtime_ns)
        if before != (now.st_size, now.st_mtime_ns):
            grown = f"{self._opened.st_size} bytes when opened, {now.st_size} when read"
            self._damage.add("file_changed", self.text_bytes, grown)

    def _members(self) -> Generator[bytes, None, None]:
        """Yield one gzip member after the other; the bytes after the last one are counted."""
        waiting = b""
        while True:
            if len(waiting) < len(GZIP_MAGIC):
                waiting += self._file(COMPRESSED_BYTES)
            if not waiting.startswith(GZIP_MAGIC):
                break
            member = yield from self._member(waiting)
            if member is None:
                return
            waiting = member
        if waiting.strip(b"\0"):  # Tapes and block devices pad with zeros.
            self._damage.add("trailing_bytes", self.text_bytes, waiting[:32].hex())
        self._check_unchanged()

    def _member(self, waiting: bytes) -> Generator[bytes, None, bytes | None]:
        """Yield one gzip member; return the bytes read beyond it, None if nothing can follow."""
        inflate = zlib.decompressobj(wbits=31)
        while not inflate.eof:
            # zlib raises for a whole input and discards its output: the copy decompresses the
            # input again, in halves, up to the error.
            before = inflate.copy()
            try:
                piece = inflate.decompress(waiting, PIECE_BYTES)
            except zlib.error as error:
                piece, rest = _before_error(before, waiting)
                if piece:
                    yield piece
                return self._after_error(str(error), rest)
            waiting = inflate.unconsumed_tail
            if piece:
                yield piece
            # Checked for each piece, so that a bomb is detected before it has filled the memory.
            if self._expands_too_much(len(waiting)):
                return None
            if not waiting and not inflate.eof:
                waiting = self._file(COMPRESSED_BYTES)
                if not waiting and not piece:
                    self._damage.add("truncated", self.text_bytes, "within the compressed data")
                    return None
        return inflate.unused_data

    def _after_error(self, error: str, rest: bytes) -> bytes | None:
        """Return the readable rest: only a wrong checksum leaves the next member's place known."""
        # zlib stops at the last byte of the checksum, or of the length that follows it.
        skip = {"incorrect data check": 5, "incorrect length check": 1}
        beyond = next((size for text, size in skip.items() if text in error), 0)
        self._damage.add("bad_checksum" if beyond else "bad_compression", self.text_bytes, error)
        return (rest + self._file(COMPRESSED_BYTES))[beyond:] if beyond else None

    def _expands_too_much(self, unread: int) -> bool:
        allowed = EXPANSION_FREE_BYTES + EXPANSION_RATIO * (self.file_bytes - unread)
        if self.text_bytes <= allowed:
            return False
        ratio = self.text_bytes / max(1, self.file_bytes - unread)
        self._damage.add("expands_too_much", self.text_bytes, f"{ratio:.0f} to 1")
        return True


def _before_error(inflate: zlib._Decompress, waiting: bytes) -> tuple[bytes, bytes]:
    """Return what decompresses before zlib finds the error in ``waiting``, and what is left."""
    text = []
    size = len(waiting)
    while size:
        piece = waiting[:size]
        before = inflate.copy()
        try:
            text.append(inflate.decompress(piece))
        except zlib.error:
            inflate = before
            size //= 2
        else:
            waiting = waiting[size:]
            size = min(size, len(waiting))
    return b"".join(text), waiting


def _open_regular(path: Path) -> int:
    """Return a file descriptor, never of something that blocks or never ends."""
    try:
        fd = open_to_read(path)
    except OSError as error:
        raise TraceError(
            f"cannot read the trace {path}: {error.strerror}; pass a .json or .json.gz file"
        ) from error
    except ValueError as error:
        raise TraceError(f"cannot read the trace {str(path)!r}: {error}") from error
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "a special file")
    raise TraceError(
        f"cannot read the trace {path}: it is {kind}, not a regular file; "
        "pass a .json or .json.gz file"
    )


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
