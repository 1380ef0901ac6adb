"""Source of a trace's bytes: plain or gzip files, read as a stream with size limits.

Only regular files are read, plain or gzip (recognised by content, not by name). Damage is logged,
and then skipped or treated as the end of the stream: the text before the damage is always returned.
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
"""Number of bytes passed to zlib at a time. After an error, they are decompressed in halves."""
EXPANSION_RATIO: Final = 200
"""Maximum compression ratio: that of real traces is 5 to 40, of a decompression bomb a thousand."""
EXPANSION_FREE_BYTES: Final = 10 << 20


class TraceSource:
    """Uncompressed text of a trace, read in pieces."""

    def __init__(self, path: Path, damage: DamageLog, max_bytes: int) -> None:
        self._damage = damage
        self._max_bytes = max_bytes
        self._fd = _open_regular(path)
        self._opened = os.fstat(self._fd)
        self._hash = hashlib.sha256()
        self.path = path
        self.file_bytes = 0
        """Number of bytes read from the file so far, compressed or not."""
        self.text_bytes = 0
        """Number of bytes of uncompressed text returned so far."""
        begin = read_at(self._fd, len(GZIP_MAGIC), 0)
        self.is_gzip = begin == GZIP_MAGIC
        self.is_cut_gzip = begin == GZIP_MAGIC[:1]
        """Whether the file ends within the magic number of gzip."""
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
        """Return the next piece of text; empty if the end or the size limit is reached."""
        piece = next(self._pieces, b"")
        room = self._max_bytes - self.text_bytes
        # The limit applies to the uncompressed text, not to the file.
        if len(piece) > room:
            self._damage.add("too_large", self._max_bytes, f"more than {self._max_bytes} bytes")
            self._pieces.close()
            piece = piece[:room]
        self.text_bytes += len(piece)
        self._hash.update(piece)
        return piece

    def read_at(self, position: int, size: int) -> bytes:
        """Return up to ``size`` bytes at ``position`` of a file that is not compressed."""
        return read_at(self._fd, size, position)

    def digest(self) -> str:
        """Return the SHA-256 of the text returned so far, as hexadecimal digits."""
        return self._hash.hexdigest()

    def _plain(self) -> Generator[bytes, None, None]:
        while piece := self._file(PIECE_BYTES):
            yield piece
        self._check_unchanged()

    def _file(self, size: int) -> bytes:
        """Read the next bytes of the file, up to the size that the file had when it was opened."""
        # Otherwise a file that is still being written might be read without end.
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
        """Yield a gzip member's text; return the bytes after it, or None if reading must stop."""
        inflate = zlib.decompressobj(wbits=31)
        while not inflate.eof:
            # On an error, zlib discards the output of the whole input. The copy is then used to
            # decompress the input again, in halves, up to the error.
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
            # Checked for each piece, to detect a decompression bomb before it fills the memory.
            if self._expands_too_much(len(waiting)):
                return None
            if not waiting and not inflate.eof:
                waiting = self._file(COMPRESSED_BYTES)
                if not waiting and not piece:
                    self._damage.add("truncated", self.text_bytes, "within the compressed data")
                    return None
        return inflate.unused_data

    def _after_error(self, error: str, rest: bytes) -> bytes | None:
        # zlib stops at the last byte of the checksum, or of the length that follows the checksum.
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
    """Return the text before the error in ``waiting``, and the remaining compressed bytes."""
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
    """Open a regular file and return its descriptor; other files might block or be endless."""
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
