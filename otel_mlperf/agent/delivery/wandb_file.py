"""How do records stand in a file of Weights & Biases, wherever in it they begin?

Its transaction log is LevelDB's, behind a header of its own: blocks of 32 KiB, which no piece of a
record crosses. W&B's library writes one in memory first, for up to 15 s; this gives the bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

_FILE_HEADER: Final = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_BLOCK: Final = 1 << 15
_PIECE: Final = struct.Struct("<IHB")
"""Before each piece: the checksum of its kind and content, its length, its kind."""
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def framed(at: int, records: Iterable[bytes]) -> bytes:
    """What to write from byte ``at`` on, the end of a record, or 0: then the file begins."""
    body = bytearray(b"" if at else _FILE_HEADER)
    for record in records:
        done, begun = 0, False
        while not begun or done < len(record):
            room = _BLOCK - (at + len(body)) % _BLOCK - _PIECE.size
            if room < 0:  # the block's last bytes, too few
                body += bytes(room + _PIECE.size)
                continue
            piece = record[done : done + room]
            done += len(piece)
            is_last = done == len(record)
            kind = (_LAST if begun else _WHOLE) if is_last else (_MIDDLE if begun else _FIRST)
            body += _PIECE.pack(crc32(piece, crc32(bytes((kind,)))), len(piece), kind) + piece
            begun = True
    return bytes(body)
