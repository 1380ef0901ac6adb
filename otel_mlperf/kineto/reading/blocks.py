"""Text blocks of a trace in memory, and the boundaries between their entries.

Text is decoded in blocks that end between two entries, without looking at every byte in Python.
Boundaries are recognised by their appearance, which a text inside an entry may imitate: the
decoder then refuses the block, and ``damaged_blocks`` takes it apart with care.
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
_MOST_BLANKS: Final = 64
"""Maximum number of blanks examined before a brace: with more, it is assumed to start an entry."""
# Decimals stay text: a float cannot represent a current time to the nanosecond.
_DECODER: Final = msgspec.json.Decoder(list[ENTRY], float_hook=str)
NOT_DECODED: Final = (msgspec.DecodeError, RecursionError, ValueError)
PART_BYTES: Final = 1 << 19
"""Small enough that a block, and the objects made from it, stay in the processor's cache."""


def last_between(data: bytes) -> tuple[int, int] | None:
    """Return where the last whole entry of ``data`` ends, and where the next one starts."""
    # Regular expressions only search forwards: the end of the block is tried first, because
    # entries are short.
    for begin in (max(0, len(data) - _LOOK_BACK), 0):
        places = [match.span() for match in BETWEEN.finditer(data, begin)]
        if places:
            return places[-1][0] + 1, places[-1][1]
    return None


class TextBlock:
    """Decoded entries, and the text that they were decoded from."""

    __slots__ = ("_text", "entries")

    def __init__(self, text: bytes, entries: list[Any]) -> None:
        self._text = text
        self.entries = entries

    def positions(self) -> NDArray[np.int64]:
        """Return the position of each entry's ``{``, from the start of the block."""
        # Computed only on request, by scanning the text again: the decoder does not report
        # positions.
        array = np.frombuffer(self._text, np.uint8)
        opens = np.flatnonzero(array == _OPEN)
        positions = opens[_may_begin_entry(array, opens)]
        if len(positions) != len(self.entries):
            # Other braces look like one: objects in lists within entries, or braces in texts.
            positions = _outermost(array)
        return positions - len(b"[")


def decode(text: memoryview) -> TextBlock | None:
    """Decode the entries in ``text``, which are separated by commas; None if that fails."""
    whole = b"".join((b"[", text, b"]"))
    try:
        return TextBlock(whole, _DECODER.decode(whole))
    except NOT_DECODED:
        return None


def _may_begin_entry(array: NDArray[np.uint8], opens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which braces follow a comma, or the start of the list, as those of all entries do."""
    # The bracket of the list is at 0, so there is always one byte in front of a brace.
    before = opens - 1
    for _ in range(_MOST_BLANKS):
        blank = array[before] <= _BLANK
        if not blank.any():
            break
        before -= blank
    byte = array[before]
    may_begin: NDArray[np.bool_] = (byte == ord(",")) | (byte <= _BLANK) | (before == 0)
    return may_begin


def _outermost(array: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return where an object starts that is within no other object, nor in a text."""
    # Slow, and correct for any text: every quote and escape is examined.
    braces = np.flatnonzero(((array == _OPEN) | (array == _CLOSE)) & ~_inside_texts(array))
    opens = array[braces] == _OPEN
    depth = np.cumsum(np.where(opens, 1, -1))
    outermost: NDArray[np.int64] = braces[opens & (depth == 1)]
    return outermost


def _inside_texts(array: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return which bytes are between quotes."""
    quotes = np.flatnonzero(array == ord('"'))
    escapes = np.flatnonzero(array == ord("\\"))
    if len(escapes):
        # In a run of backslashes every second one is itself escaped.
        first = np.concatenate(([True], np.diff(escapes) != 1))
        run = np.arange(len(escapes)) - np.maximum.accumulate(
            np.where(first, np.arange(len(escapes)), 0)
        )
        quotes = quotes[~np.isin(quotes, escapes[run % 2 == 0] + 1)]
    marks = np.zeros(len(array), np.int8)
    marks[quotes] = 1
    # After an odd number of quotes the position is inside a text.
    return np.bitwise_xor.accumulate(marks).astype(np.bool_)


class TraceText:
    """A window over the stream: bytes are appended at its end and dropped at its start.

    One piece is read ahead on a thread: reading, decompressing and hashing need no interpreter, so
    that they cost no time in addition to decoding if there is a second processor.
    """

    def __init__(self, source: TraceSource, progress: Callable[[int], None] | None = None) -> None:
        self._source = source
        self._progress = progress
        self._thread = ThreadPoolExecutor(1, "otel-mlperf-trace")
        self._ahead = self._thread.submit(source.read)
        self._piece = memoryview(b"")
        """Bytes read, but not yet in ``data``."""
        self.data = b""
        self.offset = 0
        """Offset of ``data[0]`` in the uncompressed text."""
        self.ended = False
        """Whether ``data`` reaches to the end of the text."""

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
        """Append up to ``PART_BYTES``; return False at the end."""
        if not self._piece:
            self._piece = memoryview(self._ahead.result())
            if self._piece:
                self._ahead = self._thread.submit(self._source.read)
            if self._progress is not None:
                self._progress(self._source.file_bytes)
        # The rest of the block before is part of an entry: it is short, and copied once.
        self.data = b"".join((self.data, self._piece[:PART_BYTES]))
        self.ended = not self._piece
        self._piece = self._piece[PART_BYTES:]
        return not self.ended

    def drop(self, size: int) -> None:
        """Drop the first ``size`` bytes."""
        self.data = self.data[size:]
        self.offset += size
