"""The file for rows that had to leave a journal's ring before an agent could read them.

It is ``<journal>.moved``, next to the journal. It contains the rows of the first slots, all of them
and in order. The ring continues behind them.
"""

from __future__ import annotations

import os
from contextlib import suppress

from otel_mlperf.journal.layout import ROW_BYTES
from otel_mlperf.portability import CLOEXEC, NOFOLLOW


def moved_path(journal: str) -> str:
    """Return the path of the file for the rows of a journal."""
    return f"{journal}.moved"


def count_moved(journal: str) -> int:
    """Return how many rows, slots 1 to that number, are in the file; 0 without a file."""
    with suppress(OSError):
        return os.stat(moved_path(journal), follow_symlinks=False).st_size // ROW_BYTES
    return 0


def read_moved(journal: str, first: int, last: int) -> bytes:
    """Return the rows of the slots ``first`` to ``last``.

    Raises:
        OSError: the file does not exist any more.
    """
    fd = os.open(moved_path(journal), os.O_RDONLY | CLOEXEC | NOFOLLOW)
    try:
        return os.pread(fd, (last - first + 1) * ROW_BYTES, (first - 1) * ROW_BYTES)
    finally:
        os.close(fd)


def drop_moved(journal: str) -> None:
    """Remove the file, if there is one."""
    with suppress(OSError):
        os.unlink(moved_path(journal))
