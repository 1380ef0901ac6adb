"""Text blocks of a trace in memory, and the boundaries between their entries.

Text is decoded in blocks that end between two entries. Boundaries are found by a regular expression
instead of parsing every byte, so that a string inside an entry may be mistaken for a boundary. In
that case the decoder rejects the block, and ``damaged_blocks`` parses it entry by entry.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from otel_mlperf.kineto.reading.entries import ENTRY

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from numpy.typing import NDArray

    from otel_mlperf.kineto.reading.source import TraceSource

BETWEEN: Final = re.compile(rb'\}\s*,\s*(?=\{\s*")')
_LOOK_BACK: Final = 1 << 14
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")
_BLANK: Final = ord(" ")
_MAX_BLANKS: Final = 64
"""Maximum number of blanks examined before a brace; after more, the brace counts as a start."""
# Decimals remain text, because a float cannot represent a current Unix time to the nanosecond.
_DECODER: Final = msgspec.json.Decoder(list[ENTRY], float_hook=str)
NOT_DECODED: Final = (msgspec.DecodeError, RecursionError, ValueError)
PART_BYTES: Final = 1 << 19
"""Size of a block: small enough that the block and its objects fit the processor's cache."""


def last_between(data: bytes) -> tuple[int, int] | None:
    """Return two offsets in ``data``: end of the last complete entry, start of the entry after it.

    Return None if no entry ends in ``data``.
    """
    # Regular expressions only search forwards. Only the end of the block is searched first, which
    # usually suffices because entries are short.
    for begin in (max(0, len(data) - _LOOK_BACK), 0):
        places = [match.span() for match in BETWEEN.finditer(data, begin)]
        if places:
            return places[-1][0] + 1, places[-1][1]
    return None


class TextBlock:
    """Decoded entries of a block, with the text from which they were decoded."""

    __slots__ = ("_text", "entries")

    def __init__(self, text: bytes, entries: list[Any]) -> None:
        self._text = text
        self.entries = entries

    def positions(self) -> NDArray[np.int64]:
        """Return the byte offset of each entry's ``{`` from the start of the block."""
        # Computed only on request, by scanning the text again, because the decoder does not report
        # positions.
        array = np.frombuffer(self._text, np.uint8)
        opens = np.flatnonzero(array == _OPEN)
        positions = opens[_may_begin_entry(array, opens)]
        if len(positions) != len(self.entries):
            # Other braces seem to start an entry, too: objects in lists, or braces in strings.
            positions = _outermost(array)
        return positions - len(b"[")


def decode(text: memoryview) -> TextBlock | None:
    """Decode the entries in ``text``, which are separated by commas; return None if that fails."""
    whole = b"".join((b"[", text, b"]"))
    try:
        return TextBlock(whole, _DECODER.decode(whole))
    except NOT_DECODED:
        return None


def _may_begin_entry(array: NDArray[np.uint8], opens: NDArray[np.int64]) -> NDArray[np.bool_]:
    # The bracket of the list is at offset 0, so that a byte precedes every brace.
    before = opens - 1
    for _ in range(_MAX_BLANKS):
        blank = array[before] <= _BLANK
        if not blank.any():
            break
        before -= blank
    byte = array[before]
    may_begin: NDArray[np.bool_] = (byte == ord(",")) | (byte <= _BLANK) | (before == 0)
    return may_begin


def _outermost(array: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the start of each outermost object; braces in strings are ignored."""
    # Slow but correct for any text, because every quote and escape is examined.
    braces = np.flatnonzero(((array == _OPEN) | (array == _CLOSE)) & ~_inside_texts(array))
    opens = array[braces] == _OPEN
    depth = np.cumsum(np.where(opens, 1, -1))
    outermost: NDArray[np.int64] = braces[opens & (depth == 1)]
    return outermost


def _inside_texts(array: NDArray[np.uint8]) -> NDArray[np.bool_]:
    quotes = np.flatnonzero(array == ord('"'))
    escapes = np.flatnonzero(array == ord("\\"))
    if len(escapes):
        # In a run of backslashes, every second backslash is itself escaped.
        first = np.concatenate(([True], np.diff(escapes) != 1))
        run = np.arange(len(escapes)) - np.maximum.accumulate(
            np.where(first, np.arange(len(escapes)), 0)
        )
        quotes = quotes[~np.isin(quotes, escapes[run % 2 == 0] + 1)]
    marks = np.zeros(len(array), np.int8)
    marks[quotes] = 1
    # After an odd number of quotes, the position is inside a string.
    return np.bitwise_xor.accumulate(marks).astype(np.bool_)


class TraceText:
    """Sliding window of a trace's text: bytes are appended at the end and dropped at the start.

    The next piece is read ahead on a thread. Reading, decompressing and hashing release the GIL, so
    that they run in parallel with decoding if a second CPU is available.
    """

    def __init__(self, source: TraceSource, progress: Callable[[int], None] | None = None) -> None:
        self._source = source
        self._progress = progress
        self._thread = ThreadPoolExecutor(1, "otel-mlperf-trace")
        self._ahead = self._thread.submit(source.read)
        self._piece = memoryview(b"")
        """Bytes that were read but not yet appended to ``data``."""
        self.data = b""
        self.offset = 0
        """Offset of ``data[0]`` in the uncompressed text."""
        self.ended = False
        """Whether ``data`` extends to the end of the text."""

    def __enter__(self) -> TraceText:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def more(self) -> bool:
        """Append up to ``PART_BYTES`` to ``data``; return False at the end of the text."""
        if not self._piece:
            self._piece = memoryview(self._ahead.result())
            if self._piece:
                self._ahead = self._thread.submit(self._source.read)
            if self._progress is not None:
                self._progress(self._source.file_bytes)
        # The remainder of the previous block is short, because it is a part of one entry.
        self.data = b"".join((self.data, self._piece[:PART_BYTES]))
        self.ended = not self._piece
        self._piece = self._piece[PART_BYTES:]
        return not self.ended

    def drop(self, size: int) -> None:
        """Drop the first ``size`` bytes of ``data``."""
        self.data = self.data[size:]
        self.offset += size
