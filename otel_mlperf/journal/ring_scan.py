"""Scan of a ring for the slots that were published since the last look, and their rows.

Rows are returned as copies in slot order. A slot that was drawn but not stored is a *hole*: its
writer is still storing, or was killed. The scan passes a hole immediately and examines it again
later. Its place is freed only when three quarters of the ring are behind it.

A truncated file gets its length back, with zeros in place of the lost rows. A process that has
mapped the file could not access that part any more (SIGBUS), and can again. A file whose header is
gone stays unchanged: its former content is unknown.
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
"""Inverse shares of a ring at which filling is checked: a single slot may be a hole."""
_STORES_IN_ORDER: Final = stores_in_order()


class RingScan:
    """Scan through an array of 64-byte rows in slot order, which remembers the holes.

    Where the processor may show a row's last word before the others (``in_order`` is False), a row
    counts from the second look that sees it.
    """

    def __init__(self, ring: Rows, *, in_order: bool = _STORES_IN_ORDER) -> None:
        self._ring = ring
        self._mask = np.uint64(len(ring) - 1)
        self._in_order = in_order
        self.next = 1
        """The first slot that no look has reached."""
        self.holes: list[int] = []
        self._given_up: set[int] = set()
        """Places of holes that were too old, whose content no writer will complete."""
        self._cut = CutSlots(len(ring), len(ring), 0)
        self._reached = 0
        """The last published slot that was found."""
        self._gone = 0
        self._seen = 0
        """The last published slot of the previous look, and the holes that it saw filled."""
        self._filled: list[int] = []

    def __len__(self) -> int:
        return len(self._ring)

    def take(self, *, final: bool = False) -> Rows:
        """Return a copy of every row published since the last look; ``final`` passes all holes."""
        twice = not (self._in_order or final)
        # Holes first: a row that fills a hole is older than all rows that the scan below finds, so
        # that rows of one thread stay in order.
        parts = [self._late(twice)]
        known, end = len(self.holes), self.next + len(self._ring)
        while self.next < end:
            slots = np.arange(self.next, min(self.next + _BLOCK, end), dtype=np.uint64)
            at = slots & self._mask
            published = self._published(slots, at, twice)
            # The scan ends at the first block without any row. A writer may have stored rows in a
            # later block, but the next scan will find them from here: nothing is skipped.
            if not published.any():
                if not (final or self._goes_on_behind(slots, end)):
                    break
                self.holes += slots[self._cut.among(slots)].tolist()
                self.next += len(slots)
                continue
            last = int(np.flatnonzero(published)[-1]) + 1
            # Only gaps in front of a published row are holes. Empty slots behind the last row have
            # not been drawn yet, as far as is known, and are scanned again anyway.
            self.holes += slots[:last][~published[:last]].tolist()
            parts.append(self._ring[at[:last][published[:last]]])
            self.next += last
            self._reached = self.next - 1
        if twice:
            self._look_ahead()
        elif len(self.holes) > known:
            # A look lasts a while, longer if it loses its processor. A row that was missing when
            # the scan passed may have arrived by now, and then it is no hole.
            parts.append(self._late(twice))
        self._give_up_cut(self._reached)
        rows: Rows = np.concatenate(parts)
        return rows

    def cut_off(self, place: int, below: int) -> None:
        """Note that places from ``place`` on were cut off; slots from ``below`` on are later."""
        self._cut = CutSlots(len(self._ring), place, below)

    def take_gone(self, head: int = 0) -> int:
        """Return the number of further rows known to be cut off before a look reached them.

        ``head`` is the last slot that was drawn, an empty row; 0: unknown.
        """
        self._give_up_cut(head - 1)
        gone, self._gone = self._gone, 0
        return gone

    def _goes_on_behind(self, slots: NDArray[np.uint64], end: int) -> bool:
        """Return whether rows follow an empty block that was cut off and stays empty."""
        if not self._cut.among(slots).any():
            return False
        later = np.arange(slots[-1] + 1, end, dtype=np.uint64)
        return bool((self._ring["seq"][later & self._mask] == later).any())

    def _give_up_cut(self, last: int) -> None:
        if self.holes and (gone := set(self._cut.before(self.holes, max(last, 0)))):
            self._gone += len(gone)
            self.holes = [slot for slot in self.holes if slot not in gone]

    def _published(
        self, slots: NDArray[np.uint64], at: NDArray[np.uint64], twice: bool
    ) -> NDArray[np.bool_]:
        # The number is compared, not its presence: a slot with the row of the previous round has a
        # lower number, so a stale row is never mistaken for the expected one.
        published: NDArray[np.bool_] = self._ring["seq"][at] == slots
        return published & (slots <= np.uint64(self._seen)) if twice else published

    def _late(self, twice: bool) -> Rows:
        slots = np.array(self.holes, np.uint64)
        at = slots & self._mask
        published = self._ring["seq"][at] == slots
        if twice:
            # Seen filled by the previous look: words that the processor showed late are there by
            # now.
            published &= np.isin(slots, np.array(self._filled, np.uint64))
        self.holes = slots[~published].tolist()
        late: Rows = self._ring[at[published]]
        return late

    def _look_ahead(self) -> None:
        """Remember the rows that are there now, for the next look to return."""
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
        """Return whether a tenth of the array waits for the next look, by a few probes."""
        far = (len(self._ring) // part for part in _GLANCES)
        return any(self._ring["seq"][self.next + ahead & int(self._mask)] == self.next + ahead
                   for ahead in far)  # fmt: skip

    def freeable(self) -> int:
        """Return the first slot that must not be rewritten yet; give up holes that are too old."""
        # A permanent hole would stop the writer for good (its thread was killed between drawing and
        # storing). A slow writer has had the time of three quarters of a ring. If it stores after
        # that, one of two rows is lost, but a mixture is never read: a row is stored under the GIL,
        # its number last.
        oldest = self.next - len(self._ring) * 3 // 4
        if self.holes and self.holes[0] < oldest:
            old = np.array([slot for slot in self.holes if slot < oldest], np.uint64)
            places = (old & self._mask).astype(np.intp)
            self._given_up.update(places[self._is_damaged(places)].tolist())
            self.holes = [slot for slot in self.holes if slot >= oldest]
        return self.holes[0] if self.holes else self.next

    def damaged(self) -> int:
        """Return the number of rows that were overwritten so that no look has found them.

        A hole contains nothing, or the row of a previous round: a kill there leaves no more. Only
        rows that could have been sections are counted, because losses are reported in sections.
        """
        places = np.flatnonzero(self._is_damaged(np.arange(len(self._ring))))
        return len(self._given_up.union(places.tolist()))

    def _is_damaged(self, places: NDArray[np.intp]) -> NDArray[np.bool_]:
        seq, kind = self._ring["seq"][places], self._ring["flags"][places] & 15
        elsewhere = (seq & self._mask != places.astype(np.uint64)) | (seq >= np.uint64(self.next))
        damaged: NDArray[np.bool_] = elsewhere & (seq != 0) & (kind == Kind.SECTION)
        return damaged

    def newest(self, most: int) -> Rows:
        """Return a copy of at most ``most`` rows, the newest, whether they were taken or not."""
        ring = self._ring
        # Rows are written concurrently; newer rows are left to the next look.
        last = self._last()
        first = max(1, last - min(most, len(ring)) + 1)
        slots = np.arange(first, last + 1, dtype=np.uint64)
        at = slots & self._mask
        rows: Rows = ring[at]
        # Whole before and after the copy: it was not overwritten in the meantime.
        whole: Rows = rows[(rows["seq"] == slots) & (ring["seq"][at] == slots)]
        return whole

    def _last(self) -> int:
        seq = self._ring["seq"].copy()
        own = np.sort(seq[(seq & self._mask == np.arange(len(seq), dtype=np.uint64)) & (seq != 0)])
        # Numbers in one ring differ by less than its length; a number beyond that was overwritten.
        most = int(own[len(own) // 2]) + len(seq) if len(own) else 0
        return int(own[np.searchsorted(own, min(most, _HIGHEST)) - 1]) if len(own) else 0


def rows_of_kind(rows: Rows, kind: Kind) -> Rows:
    """Return the rows of one kind, in the same order."""
    chosen: Rows = rows[rows["flags"] & 15 == kind]
    return chosen


class PayloadParts:
    """Assembler of the parts of payloads and entries, which may arrive in any order."""

    def __init__(self, parse: Callable[[bytes], Any] = parse_payload) -> None:
        self._parse = parse
        self._open: dict[int, dict[int, bytes]] = {}
        self.ready: dict[int, Any] = {}
        """Decoded contents by span id, or by entry number."""
        self.damaged = 0
        """Number of complete contents that were invalid: they were overwritten."""

    def feed(self, rows: Rows) -> None:
        """Add PAYLOAD rows; complete contents are decoded into ``ready``."""
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
        except ValueError:  # its row is kept
            self.damaged += 1

    @property
    def unfinished(self) -> list[int]:
        """Keys of which some parts are missing."""
        return list(self._open)

    def pop(self, key: int) -> Any:
        """Return the content for ``key``, once; None if there is none."""
        self._open.pop(key, None)
        return self.ready.pop(key, None)
