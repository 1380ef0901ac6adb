"""Readers and parsers of small kernel files that are read repeatedly.

A file of ``/proc`` or ``/sys/fs/cgroup`` stays open and is read from offset 0 each time, at a third
of the cost of opening it again. The open files of a process also remain bound to this process if
its process id is reused.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

from otel_mlperf.own_descriptor import OwnDescriptor

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")
TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_log = logging.getLogger("otel_mlperf.sensors")
_CHUNK: Final = 1 << 16
_SURELY_WHOLE: Final = 2048
"""Maximum size of a read that is surely the last one.

The kernel returns whole records, up to 4 KiB per read.
"""
_MAX_DIGITS: Final = 20


def has_proc(proc: Path) -> bool:
    """Return whether ``proc`` exists; otherwise (macOS) psutil is the only source of readings."""
    return proc.is_dir()


class KeptFile:
    """File that stays open for repeated reads; an unreadable file is treated as empty."""

    __slots__ = ("_file", "_path", "_silent")

    def __init__(self, path: Path, *, may_lack: bool = True) -> None:
        """If ``may_lack`` is False, the first failed read is logged; otherwise, none is logged."""
        self._path, self._silent = str(path), may_lack
        self._file: OwnDescriptor | None = None

    def read(self) -> bytes:
        """Return the current content of the file; empty if it cannot be read."""
        try:
            if self._file is None:
                self._file = OwnDescriptor(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
            fd = self._file.fd
            # Must start at offset 0, because only then does the kernel generate the text again.
            text = part = os.pread(fd, _CHUNK, 0)
            while len(part) > _SURELY_WHOLE:
                part = os.pread(fd, _CHUNK, len(text))
                text += part
        except (OSError, ValueError) as error:
            self._failed(error)
            return b""
        return text

    def _failed(self, error: Exception) -> None:
        self.close()
        if not self._silent:
            _log.info("reading %s failed: %s; readings of this file are missing", self._path, error)
            self._silent = True

    def close(self) -> None:
        """Close the descriptor; the next read opens the file again."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def read_once(path: Path | str) -> bytes:
    """Return the content of a file that is read rarely; empty if it cannot be read."""
    # Path.read_bytes would cost twice as much, and there may be a file per thread.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(fd, _CHUNK), b""))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return b""


def entries(path: Path | str) -> list[str]:
    """Return the sorted names in a folder; empty if the folder cannot be read."""
    try:
        return sorted(os.listdir(path))
    except (OSError, ValueError):
        return []


def number(word: bytes) -> int | None:
    """Parse a plain decimal number; return None for any other text."""
    return int(word) if word.isdigit() and len(word) <= _MAX_DIGITS else None


def numbers(words: list[bytes]) -> list[int]:
    """Parse plain decimal numbers; return an empty list if any text is not such a number."""
    # Checked together, because a file may contain hundreds of numbers.
    if not b"".join(words).isdigit() or len(max(words, key=len)) > _MAX_DIGITS:
        return []
    return [int(word) for word in words]


def word(text: bytes, key: bytes) -> bytes:
    """Return the word after ``key`` in the line that starts with ``key``; empty if there is none.

    ``key`` includes the colon or blank that follows it.
    """
    start = 0 if text.startswith(key) else text.find(b"\n" + key) + 1
    if not start and not text.startswith(key):
        return b""
    end = text.find(b"\n", start)
    words = text[start + len(key) : end if end >= 0 else None].split(None, 1)
    return words[0] if words else b""


def field(text: bytes, key: bytes) -> int | None:
    """Return the number after ``key`` in the line that starts with it; None if none follows."""
    return number(word(text, key))


def kibibytes(text: bytes, key: bytes) -> int | None:
    """Return the number of kB after ``key``, converted to bytes; None if no number follows."""
    size = field(text, key)
    return None if size is None else size << 10
