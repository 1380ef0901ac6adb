"""Which ids do the spans of a trace file get, so that two imports of it are one?

They follow from the file's digest and the place of the event in it. Within a file two ids never
agree and none is zero: the mixing is one to one, and no place is mapped to what mixes to zero.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PLACES: Final = 61
"""Bits that the place of an event may take."""
_ROLL_UP: Final = np.uint64(1 << _PLACES)
_NEVER: Final = np.uint64(1 << 62)
"""Set in every base and in no place: their difference is never zero."""


def span_ids(digest: str, position: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """The ids of the events at these byte offsets of the file with that digest."""
    return _mixed(position.astype(np.uint64) ^ _base(digest))


def roll_up_ids(digest: str, position: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
    """The ids of roll-ups by the byte offset of the first event in each; never an event's."""
    return _mixed((position.astype(np.uint64) | _ROLL_UP) ^ _base(digest))


def trace_id(digest: str, part: str) -> bytes:
    """The 16 bytes of a trace of a file that belongs to no run, by what the trace holds."""
    return blake2b(f"{digest}\0{part}".encode(), digest_size=16).digest()


def _base(digest: str) -> np.uint64:
    half = blake2b(digest.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(half, "big")) | _NEVER


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: one to one, and zero only for zero."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
