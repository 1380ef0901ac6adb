"""Repair of truncated journal files, and the rows that were lost.

The file gets its length back, with zeros in place of the lost rows. A process that has mapped the
file could not access that part any more (SIGBUS), and can again. A file whose header is gone stays
unchanged: its former content is unknown.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.journal.layout import HEADER_BYTES, MAGIC, Shape, Word
from otel_mlperf.portability import IS_PORTABLE

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHAPE_WORDS: Final = struct.Struct("<5Q")


def make_whole(fd: int) -> int:
    """Restore the length that the header of a journal's file specifies.

    Returns:
        Where it had been cut, in bytes from its start; 0: it was whole, or stays unchanged, because
        its header is not credible or there is no room.
    """
    length = os.fstat(fd).st_size
    if length < HEADER_BYTES:
        return 0
    words = _SHAPE_WORDS.unpack(os.pread(fd, _SHAPE_WORDS.size, 0))
    shape = Shape.of_rows(words[Word.ROWS])
    # Code that truncates a file may also have overwritten it.
    is_likely = words == (MAGIC, shape.rows, shape.cells, shape.open, shape.chunks)
    if not is_likely or shape.rows & (shape.rows - 1) or length >= shape.size:
        return 0
    try:
        if IS_PORTABLE:
            os.ftruncate(fd, shape.size)  # zeros written there could hide rows that come later
        else:
            os.posix_fallocate(fd, length, shape.size - length)
    except (OSError, OverflowError):
        return 0
    return length


class CutSlots:
    """The slots of a ring that were cut off, as far as they may have been written before.

    Args:
        rows: number of rows of the ring, a power of two.
        first: the first place that was cut off; ``rows``: none.
        below: slots from here on had not been drawn yet.
    """

    def __init__(self, rows: int, first: int, below: int) -> None:
        self._mask, self._first, self._below = rows - 1, max(first, 0), below

    def among(self, slots: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of ``slots`` were cut off."""
        is_cut: NDArray[np.bool_] = (slots & np.uint64(self._mask)) >= np.uint64(self._first)
        return is_cut & (slots < np.uint64(self._below))

    def before(self, slots: list[int], last: int) -> list[int]:
        """Return those of ``slots`` up to ``last`` that were cut off."""
        ones = np.array(slots, np.uint64)
        chosen: list[int] = ones[self.among(ones) & (ones <= np.uint64(last))].tolist()
        return chosen
