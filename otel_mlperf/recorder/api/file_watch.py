"""Durations and byte counts of the program's file reads and writes.

While files are watched, ``open()`` returns objects of the usual types, which wrap a raw file that
measures its system calls. Reads from a buffer have no cost and are not counted. Files that a
library opens without Python's ``open`` are not watched.
"""

from __future__ import annotations

import builtins
import io
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from otel_mlperf import names
from otel_mlperf.recorder.api.span import active, span
from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.names import Metric

_HOLDERS: Final[tuple[Any, ...]] = (builtins, io)
_MODES: Final = frozenset("rwxa")
_ARGUMENTS: Final = ("buffering", "encoding", "errors", "newline")
_KINDS: Final = frozenset({"", "b", "t", "+", "b+", "+b", "t+", "+t"})
_SECTIONS: Final = {names.FILE_READ: names.SPAN_FILE_READ, names.FILE_WRITE: names.SPAN_FILE_WRITE}


class _Busy(threading.local):
    """Whether this thread is in a measured call, inside which no further calls are measured."""

    yes = False


_busy = _Busy()


class FileWatch:
    """Watch of files until ``stop()``; a context manager that stops at its end."""

    def __init__(self) -> None:
        self._is_on = True

    def stop(self) -> None:
        """Stop watching files that are opened later; idempotent."""
        if self._is_on:
            self._is_on = False
            _open.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def watch_files() -> FileWatch:
    """Record reads and writes of files that are opened from now on: ``om.watch_files()``.

    Reads and writes are recorded as aggregated sections ``file.read`` and ``file.write``, and as
    byte counts. Each read or write costs some 10 µs more. Files of forked workers are also watched.
    Files are not watched if they are opened while no run is active, by file descriptor, with an
    ``opener``, or without Python's ``open``.
    """
    _open.enter()
    return FileWatch()


class _RawFile(io.FileIO):
    """Raw file that measures its system calls."""

    def readinto(self, buffer: Any, /) -> Any:
        """Read into a buffer and return the number of bytes."""
        return _timed(names.FILE_READ, super().readinto, buffer)

    def readall(self) -> Any:
        """Read all remaining bytes."""
        return _timed(names.FILE_READ, super().readall)

    def read(self, size: int | None = -1, /) -> Any:
        """Read at most ``size`` bytes."""
        return _timed(names.FILE_READ, super().read, size)

    def write(self, data: Any, /) -> Any:
        """Write as many bytes as possible and return their number."""
        return _timed(names.FILE_WRITE, super().write, data)


def _timed(direction: str, call: Callable[..., Any], *values: Any) -> Any:
    section = None if _busy.yes else _enter_section(direction)
    if section is None:
        return call(*values)
    began = time.monotonic_ns()
    done: Any = None
    try:
        done = call(*values)
    finally:
        _exit_section(section, direction, done, time.monotonic_ns() - began)
    return done


def _enter_section(direction: str) -> Any:
    """Enter a section and return it; None if nothing is recorded."""
    try:
        if active() is None:
            return None
        _busy.yes = True
        section = span(_SECTIONS[direction], aggregate=True)
        section.__enter__()
    except Exception as error:  # noqa: BLE001 - recording never raises
        _busy.yes = False
        internal_error(error)
        return None
    return section


def _exit_section(section: Any, direction: str, done: Any, taken_ns: int) -> None:
    try:
        section.__exit__(None, None, None)
        size = done if isinstance(done, int) else len(done or b"")
        _add(names.FILE_IO, size, direction)
        _add(names.FILE_IO_TIME, taken_ns / 1e9, direction)
    except Exception as error:  # noqa: BLE001 - recording never raises
        internal_error(error)
    finally:
        _busy.yes = False


def _add(metric: Metric, value: float, direction: str) -> None:
    recorder = active()
    if recorder is not None:
        labels = ((names.DISK_DIRECTION, direction),)
        recorder.cells.add(metric.name, metric.unit, value, labels)


class _Open:
    """Replacement of ``open`` while files are watched.

    Not a function, because a class attribute ``open = open`` would become a method.
    """

    def __init__(self) -> None:
        self._given: Any = builtins.open
        self._watches = 0
        self.__name__, self.__doc__ = "open", builtins.open.__doc__
        self.__wrapped__ = self._given

    def enter(self) -> None:
        """Add a watch; the first one replaces ``open``."""
        self._watches += 1
        if self._watches == 1:
            self._given = self.__wrapped__ = builtins.open
            for module in _HOLDERS:
                module.open = self

    def leave(self) -> None:
        """Remove a watch; the last one restores ``open``, unless other code has replaced it."""
        self._watches -= 1
        if not self._watches:
            for module in _HOLDERS:
                if module.open is self:
                    module.open = self._given

    def __call__(self, file: Any, mode: Any = "r", *more: Any, **named: Any) -> Any:
        """Open a file as the original ``open`` does, as a measured file if possible."""
        if _busy.yes or not _is_plain(file, mode, more, named) or active() is None:
            return self._given(file, mode, *more, **named)
        return _open_plain(os.fspath(file), mode, *more, **named)


def _is_plain(file: Any, mode: Any, more: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Return whether valid arguments open a path without special options.

    All other calls go to the original ``open``, which reports errors.
    """
    if not isinstance(file, str | bytes | os.PathLike) or type(mode) is not str:
        return False
    about = dict(zip(_ARGUMENTS, more, strict=False))
    is_known = named.keys() <= set(_ARGUMENTS[len(more) :]) and len(more) <= len(_ARGUMENTS)
    about |= named
    buffering = about.pop("buffering", -1)
    is_mode = mode[:1] in _MODES and mode[1:] in _KINDS
    if not is_known or not is_mode or type(buffering) is not int:
        return False
    if "b" in mode:
        return buffering != 1 and all(value is None for value in about.values())
    return buffering != 0


def _open_plain(
    file: Any,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> Any:
    """Open a file as ``io.open`` does, with a measured raw file inside."""
    raw = _RawFile(file, mode.replace("b", "").replace("t", ""))
    given: Any = raw
    try:
        if buffering == 0:
            return raw
        by_line = buffering == 1 or (buffering < 0 and raw.isatty())
        size = buffering if buffering > 1 else _usual_size(raw)
        given = _buffered(raw, mode, size)
        if "b" in mode:
            return given
        given = io.TextIOWrapper(given, encoding, errors, newline, by_line)
        given.mode = mode
    except BaseException:
        given.close()
        raise
    return given


def _buffered(raw: io.FileIO, mode: str, size: int) -> Any:
    if "+" in mode:
        return io.BufferedRandom(raw, size)
    return io.BufferedReader(raw, size) if mode[0] == "r" else io.BufferedWriter(raw, size)


def _usual_size(raw: io.FileIO) -> int:
    block = os.fstat(raw.fileno()).st_blksize
    return block if block > 1 else io.DEFAULT_BUFFER_SIZE


_open: Final = _Open()
