"""Small files of the kernel, read repeatedly at little cost.

A file of ``/proc`` or ``/sys/fs/cgroup`` stays open and is read from its beginning each time. That
costs a third of opening it anew. For a process this has a second use: its files never become those
of another process that got the same number.
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
"""The kernel returns whole records, up to 4 KiB at a time: a part of this size or less is the end.
"""
_MOST_DIGITS: Final = 20


def has_proc(proc: Path) -> bool:
    """Return whether ``proc`` exists: the single decision about how this system is read.

    Without it (macOS) psutil reads host and processes, and what psutil lacks is absent.
    """
    return proc.is_dir()


class KeptFile:
    """File that stays open for frequent reads; empty if it cannot be read."""

    __slots__ = ("_file", "_path", "_silent")

    def __init__(self, path: Path, *, may_lack: bool = True) -> None:
        """With ``may_lack=False`` a failure to read the file is logged once."""
        self._path, self._silent = str(path), may_lack
        self._file: OwnDescriptor | None = None

    def read(self) -> bytes:
        """Return the current content."""
        try:
            if self._file is None:
                self._file = OwnDescriptor(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
            fd = self._file.fd
            # From offset 0: only then does the kernel generate the text again.
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
    # Not by Path.read_bytes, which costs twice as much: there is a file for each thread.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(fd, _CHUNK), b""))
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return b""


def entries(path: Path | str) -> list[str]:
    """Return the names in a folder, sorted; empty if it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except (OSError, ValueError):
        return []


def number(word: bytes) -> int | None:
    """Parse a plain decimal number; None for any other text."""
    return int(word) if word.isdigit() and len(word) <= _MOST_DIGITS else None


def numbers(words: list[bytes]) -> list[int]:
    """Parse plain decimal numbers; empty if any text is something else, or there is none."""
    # One check for all of them together: a file may have hundreds.
    if not b"".join(words).isdigit() or len(max(words, key=len)) > _MOST_DIGITS:
        return []
    return [int(word) for word in words]


def word(text: bytes, key: bytes) -> bytes:
    """Return the first word behind ``key`` at the start of a line; empty if there is none.

    ``key`` includes its colon or blank.
    """
    start = 0 if text.startswith(key) else text.find(b"\n" + key) + 1
    if not start and not text.startswith(key):
        return b""
    end = text.find(b"\n", start)
    words = text[start + len(key) : end if end >= 0 else None].split(None, 1)
    return words[0] if words else b""


def field(text: bytes, key: bytes) -> int | None:
    """Return the number behind ``key`` at the start of a line."""
    return number(word(text, key))


def kibibytes(text: bytes, key: bytes) -> int | None:
    """Return a field in kB, converted to bytes."""
    size = field(text, key)
    return None if size is None else size << 10
