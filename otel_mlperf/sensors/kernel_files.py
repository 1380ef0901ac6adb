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
"""The kernel hands out whole records, 4 KiB of them at a time; so much less is the end."""
_MOST_DIGITS: Final = 20


def has_proc(proc: Path) -> bool:
    """Return whether ``proc`` is there: the one place that decides what is read of this system.

    Without it (macOS) psutil reads host and processes, and what psutil lacks is absent.
    """
    return proc.is_dir()


class KeptFile:
    """A file that is read often; empty where it cannot be read."""

    __slots__ = ("_file", "_path", "_silent")

    def __init__(self, path: Path, *, may_lack: bool = True) -> None:
        """With ``may_lack=False`` it is said once in the log that the file cannot be read."""
        self._path, self._silent = str(path), may_lack
        self._file: OwnDescriptor | None = None

    def read(self) -> bytes:
        """What is in the file now."""
        try:
            if self._file is None:
                self._file = OwnDescriptor(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
            fd = self._file.fd
            # From 0: only then does the kernel make the text anew.
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
            _log.info("reading %s: %s; its readings are absent", self._path, error)
            self._silent = True

    def close(self) -> None:
        """Gives the descriptor back; the next read opens the file again."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def read_once(path: Path | str) -> bytes:
    """What is in a file that is read seldom; empty where it cannot be read."""
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
    """What is in a folder, in order; nothing where it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except (OSError, ValueError):
        return []


def number(word: bytes) -> int | None:
    """A plain decimal number; None for any other word."""
    return int(word) if word.isdigit() and len(word) <= _MOST_DIGITS else None


def numbers(words: list[bytes]) -> list[int]:
    """Plain decimal numbers; empty if any word is something else, or there is none."""
    # One look at all of them together: a file may have hundreds.
    if not b"".join(words).isdigit() or len(max(words, key=len)) > _MOST_DIGITS:
        return []
    return [int(word) for word in words]


def word(text: bytes, key: bytes) -> bytes:
    """The first word behind ``key`` at the beginning of a line; empty where there is none.

    ``key`` has its colon or blank.
    """
    start = 0 if text.startswith(key) else text.find(b"\n" + key) + 1
    if not start and not text.startswith(key):
        return b""
    end = text.find(b"\n", start)
    words = text[start + len(key) : end if end >= 0 else None].split(None, 1)
    return words[0] if words else b""


def field(text: bytes, key: bytes) -> int | None:
    """The number behind ``key`` at the beginning of a line."""
    return number(word(text, key))


def kibibytes(text: bytes, key: bytes) -> int | None:
    """The same of a field in kB, in bytes."""
    size = field(text, key)
    return None if size is None else size << 10
