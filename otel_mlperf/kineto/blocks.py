"""Where does one entry end and the next begin, without looking at every byte in Python?

Text is decoded in blocks that end between two entries. Such a place is found by how it looks, which
a text inside an entry may imitate: the decoder then refuses the block, and ``recovery`` takes it
apart with care.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from otel_mlperf.kineto.entries import ENTRY

if TYPE_CHECKING:
    from numpy.typing import NDArray

BETWEEN: Final = re.compile(rb'\}\s*,\s*(?=\{\s*")')
_LOOK_BACK: Final = 1 << 14
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")
# Decimals stay text: a float cannot hold today's time to the nanosecond.
_DECODER: Final = msgspec.json.Decoder(list[ENTRY], float_hook=str)
NOT_DECODED: Final = (msgspec.DecodeError, RecursionError, ValueError)


def last_between(data: bytes) -> tuple[int, int] | None:
    """Where the last whole entry of ``data`` ends, and where the next begins."""
    for begin in (max(0, len(data) - _LOOK_BACK), 0):
        found = [match.span() for match in BETWEEN.finditer(data, begin)]
        if found:
            return found[-1][0] + 1, found[-1][1]
    return None


def decode(text: bytes) -> list[Any] | None:
    """The entries in ``text``, which are separated by commas; None if they cannot be decoded."""
    try:
        entries: list[Any] = _DECODER.decode(b"[" + text + b"]")
    except NOT_DECODED:
        return None
    return entries


def find_positions(text: bytes, count: int) -> NDArray[np.int64]:
    """Where each of the ``count`` entries in ``text`` has its ``{``."""
    array = np.frombuffer(text, np.uint8)
    positions = _outermost(array, np.flatnonzero((array == _OPEN) | (array == _CLOSE)))
    if len(positions) == count:
        return positions
    # Braces in texts, such as the name of a kernel that was cut within a lambda.
    inside = _inside_texts(array)
    braces = np.flatnonzero(((array == _OPEN) | (array == _CLOSE)) & ~inside)
    return _outermost(array, braces)


def _outermost(array: NDArray[np.uint8], braces: NDArray[np.int64]) -> NDArray[np.int64]:
    opens = array[braces] == _OPEN
    depth = np.cumsum(np.where(opens, 1, -1))
    outermost: NDArray[np.int64] = braces[opens & (depth == 1)]
    return outermost


def _inside_texts(array: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which bytes stand between quotes."""
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
    return np.bitwise_xor.accumulate(marks).astype(np.bool_)
