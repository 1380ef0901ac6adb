"""Sizes of checkpoints in bytes, and the rates at which they were written or read.

The size is read right after the call, from the checkpoint's file or from the buffer that it is
written to. If neither provides a size, both figures are absent. This module does not use torch.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names
from otel_mlperf.foreign_errors import is_foreign
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.faults import internal_error

if TYPE_CHECKING:
    from collections.abc import Callable

_FILES: Final = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom)
"""Types of files whose position is read; in other types, reading it may have side effects."""
_MAX_SHARDS: Final = 64
"""Maximum number of files of one rank whose size is read: each costs a file system call."""


class CheckpointIo:
    """Measurement of one checkpoint's write or read, from construction until ``end``."""

    def __init__(
        self, direction: str, file: object, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Start the measurement.

        Args:
            direction: ``write`` or ``read``.
            file: path of a file or of a distributed checkpoint's folder, an open file, or a list of
                paths of files; the size of any other object is unknown.
            clock: returns monotonic nanoseconds.
        """
        self._direction, self._file, self._clock = direction, file, clock
        self._at = _try(_position, file)
        self._begin_ns = clock()

    def end(self, section: Any) -> int:
        """Add the checkpoint to the run's sums; set size and rate on ``section`` unless it is None.

        The rate is the size divided by the time since construction, which is the section's
        duration.

        Returns:
            Size in bytes; 0 if the size is unknown or no run is active.
        """
        took_ns = max(1, self._clock() - self._begin_ns)
        size, recorder = _try(self._size), active()
        if size is None or recorder is None:
            return 0
        try:
            labels = ((names.CHECKPOINT_DIRECTION, self._direction),)
            for metric, value in (
                (names.CHECKPOINT_IO, size),
                (names.CHECKPOINT_IO_TIME, took_ns / 1e9),
            ):
                recorder.cells.add(metric.name, metric.unit, value, labels)
            set_size(section, size, took_ns)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
        return size

    def _size(self) -> int | None:
        file = self._file
        if isinstance(file, str | os.PathLike):
            return _size_at(os.fspath(file))
        if isinstance(file, list):
            return sum(os.stat(path).st_size for path in file) or None
        if self._at is None:
            return None
        if self._direction == names.CHECKPOINT_WRITE:
            size = (_position(file) or 0) - self._at
        else:  # readers seek back and forth: all remaining bytes count as read
            size = _length(file) - self._at
        return size if size > 0 else None


def set_size(section: Any, size: int, took_ns: int) -> None:
    """Set bytes and bytes per second on a checkpoint's ``section``, unless that is None."""
    if section is not None:
        rate = size / took_ns * 1e9
        section.set(**{names.CHECKPOINT_SIZE: size, names.CHECKPOINT_RATE: rate})


def _try(call: Callable[..., int | None], *given: object) -> int | None:
    """Return the result of ``call(*given)``; None if a file is closed, missing or unsuitable."""
    try:
        return call(*given)
    except Exception as error:
        if is_foreign(error):
            raise
        return None


def _position(file: Any) -> int | None:
    kind = type(file)
    return file.tell() if kind is io.BytesIO or kind in _FILES else None


def _length(file: Any) -> int:
    if type(file) is io.BytesIO:
        return file.getbuffer().nbytes
    return os.fstat(file.fileno()).st_size


def _size_at(path: Any) -> int | None:
    found = os.stat(path)
    if stat.S_ISREG(found.st_mode):
        return found.st_size
    return _size_of_shards(path) if stat.S_ISDIR(found.st_mode) else None


def _size_of_shards(folder: Any) -> int | None:
    """Return this rank's bytes in a folder of ``torch.distributed.checkpoint``.

    None if the rank has no file there, or more than ``_MAX_SHARDS`` files.
    """
    # Files are found by name, not in a listing: each of thousands of ranks would list the files of
    # all ranks.
    rank, total = _rank(), 0
    for number in range(_MAX_SHARDS + 1):
        try:
            total += os.stat(os.path.join(folder, f"__{rank}_{number}.distcp")).st_size
        except FileNotFoundError:
            return total or None
    return None


def _rank() -> int:
    distributed = sys.modules.get("torch.distributed")
    is_one_of_many = distributed is not None and distributed.is_available()
    if is_one_of_many and distributed.is_initialized():  # type: ignore[union-attr]
        return int(distributed.get_rank())  # type: ignore[union-attr]
    return 0
