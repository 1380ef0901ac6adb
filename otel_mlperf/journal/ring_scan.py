"""Scan of a ring for rows that were published since the last poll.

Rows are returned as copies in slot order. A slot that was drawn but not stored is a *hole*: the
writer is still storing, or was killed. The scan skips holes and checks them again at later polls. A
hole is given up, and the slot is freed, if three quarters of the ring follow the hole.

A truncated file is extended to its previous length, with zeros in place of the lost rows. A process
that has mapped the file can then access the file again without SIGBUS. A file without a valid
header stays unchanged, because its previous length is unknown.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from otel_mlperf.journal.contents import parse_payload
from otel_mlperf.journal.layout import (
    HEADER_BYTES,
    MAGIC,
    PART_SHIFT,
    PARTS_SHIFT,
    Kind,
    Shape,
    Word,
    stores_in_order,
)
from otel_mlperf.portability import IS_PORTABLE

if TYPE_CHECKING:
    from collections.abc import Callable

_SHAPE_WORDS: Final = struct.Struct("<5Q")


def make_whole(fd: int) -> int:
    """Restore the length of a truncated journal file, as specified in its header.

    Returns:
        The length in bytes before the repair; 0 if the file was not truncated, or not restored
            because the header is invalid or there is no room.
    """
    length = os.fstat(fd).st_size
    if length < HEADER_BYTES:
        return 0
    words = _SHAPE_WORDS.unpack(os.pread(fd, _SHAPE_WORDS.size, 0))
    shape = Shape.of_rows(words[Word.ROWS])
    # Check the header: code that truncates a file may also have overwritten it.
    is_likely = words == (MAGIC, shape.rows, shape.cells, shape.open, shape.chunks)
    if not is_likely or shape.rows & (shape.rows - 1) or length >= shape.size:
        return 0
    try:
        if IS_PORTABLE:
            os.ftruncate(fd, shape.size)  # writing zeros could overwrite rows that are being stored
        else:
            os.posix_fallocate(fd, length, shape.size - length)
    except (OSError, OverflowError):
        return 0
    return length


class CutSlots:
    """Slots that a truncation cut off and that might have been written before the truncation.

    Args:
        rows: number of rows in the ring, a power of two.
        first: index of the first row that was cut off; ``rows`` if there is none.
        below: first slot that cannot have been drawn before the truncation.
    """

    def __init__(self, rows: int, first: int, below: int) -> None:
        self._mask, self._first, self._below = rows - 1, max(first, 0), below

    def among(self, slots: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return a mask of the ``slots`` that were cut off."""
        is_cut: NDArray[np.bool_] = (slots & np.uint64(self._mask)) >= np.uint64(self._first)
        return is_cut & (slots < np.uint64(self._below))

    def before(self, slots: list[int], last: int) -> list[int]:
        """Return those of ``slots`` that were cut off and are at most ``last``."""
        ones = np.array(slots, np.uint64)
        chosen: list[int] = ones[self.among(ones) & (ones <= np.uint64(last))].tolist()
        return chosen


Rows = NDArray[np.void]
ROW_TYPE: Final = np.dtype(
    [
        ("start", "<u8"),
        ("end", "<u8"),
        ("span", "<u8"),
        ("parent", "<u8"),
        ("root", "<u8"),
        ("track", "<u8"),
        ("name", "<u4"),
        ("flags", "<u4"),
        ("seq", "<u8"),
    ]
)
_PART_TYPE: Final = np.dtype(
    [("head", "V16"), ("span", "<u8"), ("tail", "V28"), ("flags", "<u4"), ("seq", "<u8")]
)
_BLOCK: Final = 2048
_HIGHEST: Final = (1 << 64) - 1
_GLANCES: Final = (10, 5, 2)
"""Distances, as inverse shares of the ring, at which ``is_filling`` checks single slots. There are
several distances, because one slot may be a hole."""
_STORES_IN_ORDER: Final = stores_in_order()


class RingScan:
    """Incremental scan of an array of 64-byte rows in slot order.

    If ``in_order`` is False, the processor may make a row's last word visible before its other
    words. A row is then returned only after two consecutive polls have seen the row.
    """

    def __init__(self, ring: Rows, *, in_order: bool = _STORES_IN_ORDER) -> None:
        self._ring = ring
        self._mask = np.uint64(len(ring) - 1)
        self._in_order = in_order
        self.next = 1
        """First slot that no poll has reached."""
        self.holes: list[int] = []
        self._given_up: set[int] = set()
        """Indices of given-up holes that contain damaged rows."""
        self._cut = CutSlots(len(ring), len(ring), 0)
        self._reached = 0
        """Last published slot that was found."""
        self._lost = 0
        self._seen = 0
        """If not ``in_order``: last published slot that the previous poll has seen."""
        self._filled: list[int] = []
        """If not ``in_order``: holes that the previous poll has seen filled."""

    def __len__(self) -> int:
        return len(self._ring)

    def take(self, *, final: bool = False) -> Rows:
        """Return a copy of every row published since the last poll.

        If ``final``, the process of the journal has ended: rows count immediately even if not
        ``in_order``, and empty blocks do not end the scan.
        """
        twice = not (self._in_order or final)
        # Check holes first, because their rows are older than the following rows, and rows of one
        # thread must stay in order.
        parts = [self._late(twice)]
        holes_before, end = len(self.holes), self.next + len(self._ring)
        while self.next < end:
            slots = np.arange(self.next, min(self.next + _BLOCK, end), dtype=np.uint64)
            at = slots & self._mask
            published = self._published(slots, at, twice)
            # The scan ends at the first block without any row. If there are rows in later blocks,
            # the next scan, which starts here, will find them.
            if not published.any():
                if not (final or self._goes_on_behind(slots, end)):
                    break
                self.holes += slots[self._cut.among(slots)].tolist()
                self.next += len(slots)
                continue
            last = int(np.flatnonzero(published)[-1]) + 1
            # Only gaps before a published row are holes. Empty slots after the last row may not
            # have been drawn yet, and are scanned again.
            self.holes += slots[:last][~published[:last]].tolist()
            parts.append(self._ring[at[:last][published[:last]]])
            self.next += last
            self._reached = self.next - 1
        if twice:
            self._look_ahead()
        elif len(self.holes) > holes_before:
            # Check new holes again: their rows may have been stored during the scan.
            parts.append(self._late(twice))
        self._give_up_cut(self._reached)
        rows: Rows = np.concatenate(parts)
        return rows

    def cut_off(self, place: int, below: int) -> None:
        """Record a truncation that cut off rows from index ``place`` upward (see ``CutSlots``)."""
        self._cut = CutSlots(len(self._ring), place, below)

    def take_lost_count(self, head: int = 0) -> int:
        """Return the number of rows that were cut off unread since the last call.

        ``head`` is the last slot of a closed journal (a slot with an empty row); 0 if that slot is
        unknown.
        """
        self._give_up_cut(head - 1)
        lost, self._lost = self._lost, 0
        return lost

    def _goes_on_behind(self, slots: NDArray[np.uint64], end: int) -> bool:
        """Return whether ``slots``, an empty block, was cut off and rows follow before ``end``."""
        if not self._cut.among(slots).any():
            return False
        later = np.arange(slots[-1] + 1, end, dtype=np.uint64)
        return bool((self._ring["seq"][later & self._mask] == later).any())

    def _give_up_cut(self, last: int) -> None:
        if self.holes and (lost := set(self._cut.before(self.holes, max(last, 0)))):
            self._lost += len(lost)
            self.holes = [slot for slot in self.holes if slot not in lost]

    def _published(
        self, slots: NDArray[np.uint64], at: NDArray[np.uint64], twice: bool
    ) -> NDArray[np.bool_]:
        # Compare the number, because a row of the previous round has a lower number.
        published: NDArray[np.bool_] = self._ring["seq"][at] == slots
        return published & (slots <= np.uint64(self._seen)) if twice else published

    def _late(self, twice: bool) -> Rows:
        slots = np.array(self.holes, np.uint64)
        at = slots & self._mask
        published = self._ring["seq"][at] == slots
        if twice:
            # Only holes that the previous poll has seen filled: all words are visible by now.
            published &= np.isin(slots, np.array(self._filled, np.uint64))
        self.holes = slots[~published].tolist()
        late: Rows = self._ring[at[published]]
        return late

    def _look_ahead(self) -> None:
        """Record the rows that are published now: the next poll returns no others."""
        slots = np.array(self.holes, np.uint64)
        self._filled = slots[self._ring["seq"][slots & self._mask] == slots].tolist()
        at = self.next
        while at < self.next + len(self._ring):
            slots = np.arange(at, at + _BLOCK, dtype=np.uint64)
            published = np.flatnonzero(self._ring["seq"][slots & self._mask] == slots)
            if not len(published):
                break
            self._seen = int(slots[published[-1]])
            at += _BLOCK

    def is_filling(self) -> bool:
        """Return whether at least a tenth of the ring is unread, by checking a few slots."""
        far = (len(self._ring) // part for part in _GLANCES)
        return any(self._ring["seq"][self.next + ahead & int(self._mask)] == self.next + ahead
                   for ahead in far)  # fmt: skip

    def freeable(self) -> int:
        """Return the first slot that must not be reused yet; give up holes that are too old."""
        # A permanent hole (its thread was killed between drawing and storing) would block the
        # writer forever. If a slow writer stores its row after its hole was given up, one of two
        # rows is lost. A mixture of both is never read, because a row is stored under the GIL, with
        # its number last.
        oldest = self.next - len(self._ring) * 3 // 4
        if self.holes and self.holes[0] < oldest:
            old = np.array([slot for slot in self.holes if slot < oldest], np.uint64)
            places = (old & self._mask).astype(np.intp)
            self._given_up.update(places[self._is_damaged(places)].tolist())
            self.holes = [slot for slot in self.holes if slot >= oldest]
        return self.holes[0] if self.holes else self.next

    def damaged(self) -> int:
        """Return the number of rows that no poll has found because they were overwritten.

        Holes after a kill do not count: they are empty or contain a row of the previous round. Only
        section rows count, because losses are reported in sections.
        """
        places = np.flatnonzero(self._is_damaged(np.arange(len(self._ring))))
        return len(self._given_up.union(places.tolist()))

    def _is_damaged(self, places: NDArray[np.intp]) -> NDArray[np.bool_]:
        seq, kind = self._ring["seq"][places], self._ring["flags"][places] & 15
        elsewhere = (seq & self._mask != places.astype(np.uint64)) | (seq >= np.uint64(self.next))
        damaged: NDArray[np.bool_] = elsewhere & (seq != 0) & (kind == Kind.SECTION)
        return damaged

    def newest(self, most: int) -> Rows:
        """Return a copy of the newest rows, at most ``most``, whether already taken or not."""
        ring = self._ring
        # Rows that are written in the meantime are not included.
        last = self._last()
        first = max(1, last - min(most, len(ring)) + 1)
        slots = np.arange(first, last + 1, dtype=np.uint64)
        at = slots & self._mask
        rows: Rows = ring[at]
        # Check the number before and after copying: the row was not overwritten in the meantime.
        whole: Rows = rows[(rows["seq"] == slots) & (ring["seq"][at] == slots)]
        return whole

    def _last(self) -> int:
        seq = self._ring["seq"].copy()
        ours = np.sort(seq[(seq & self._mask == np.arange(len(seq), dtype=np.uint64)) & (seq != 0)])
        # Valid numbers in a ring differ by less than its length; ignore implausible numbers.
        most = int(ours[len(ours) // 2]) + len(seq) if len(ours) else 0
        return int(ours[np.searchsorted(ours, min(most, _HIGHEST)) - 1]) if len(ours) else 0


def rows_of_kind(rows: Rows, kind: Kind) -> Rows:
    """Return the rows of one kind, in the same order."""
    chosen: Rows = rows[rows["flags"] & 15 == kind]
    return chosen


class PayloadParts:
    """Assembler of payloads and entries from parts, which may arrive in any order."""

    def __init__(self, parse: Callable[[bytes], Any] = parse_payload) -> None:
        self._parse = parse
        self._open: dict[int, dict[int, bytes]] = {}
        self.ready: dict[int, Any] = {}
        """Decoded content by span id of the payload's row, or by entry number."""
        self.damaged = 0
        """Number of payloads or entries that were complete but invalid, because they were
        overwritten."""

    def feed(self, rows: Rows) -> None:
        """Add rows with parts. Content is decoded into ``ready`` once complete."""
        parts = rows.view(_PART_TYPE)
        for head, key, tail, flags, _seq in parts.tolist():
            count = flags >> PARTS_SHIFT
            pieces = self._open.setdefault(key, {})
            pieces[flags >> PART_SHIFT & 0xFFF] = head + tail
            if len(pieces) == count:
                del self._open[key]
                self._decode(key, b"".join(pieces[i] for i in sorted(pieces)))

    def _decode(self, key: int, text: bytes) -> None:
        (length,) = struct.unpack_from("<I", text)
        try:
            self.ready[key] = self._parse(text[4 : 4 + length])
        except ValueError:  # its section row is still used
            self.damaged += 1

    @property
    def unfinished(self) -> list[int]:
        """Keys of the payloads or entries with missing parts."""
        return list(self._open)

    def pop(self, key: int) -> Any:
        """Remove and return the content for ``key``; None if it is missing or incomplete."""
        self._open.pop(key, None)
        return self.ready.pop(key, None)
