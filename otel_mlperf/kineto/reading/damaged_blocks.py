"""Recovery of entries from blocks that do not decode.

The block is split into smaller blocks, down to single entries. A single entry is parsed leniently,
repaired, or skipped up to the next position that looks like the start of an entry. A damaged entry
costs tens of microseconds, and no more memory than an intact entry.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.reading.blocks import BETWEEN, decode
from otel_mlperf.kineto.reading.repair import Parsed, coerce_entry, is_cut, mend_value, parse_value

if TYPE_CHECKING:
    from otel_mlperf.kineto.reading.damage import DamageLog
    from otel_mlperf.kineto.reading.table import Table

LONGEST_ENTRY: Final = 1 << 20
"""Maximum size of an entry's text in bytes."""
LAST_ENTRY: Final = re.compile(rb'\}\s*(?=\]\s*(?:,\s*"|\}|\Z))')
_MAX_BATCH: Final = 1 << 12
_OVERLAP: Final = 1 << 12
_EXAMINED_BYTES: Final = (1 << 12, 1 << 16, LONGEST_ENTRY)
"""Numbers of bytes examined for an entry whose end is not known, smallest first."""
_MAX_INNER: Final = 64
"""Maximum number of positions considered that look like the start of the next entry."""
_BLANK: Final = re.compile(rb"[\s,]*")
_BRACKETS: Final = re.compile(rb"[\s\]]*")
_NO_ENTRY: Final = re.compile(rb"[^{\]]*")
_FIELD_AFTER: Final = re.compile(rb'\s*(?:\Z|\}|,\s*")')
_EVENT_AFTER: Final = re.compile(rb"\s*,?\s*\{")


class Taken(NamedTuple):
    """Progress of reading a damaged block."""

    size: int
    """Number of bytes that were processed."""
    ended: bool = False
    """Whether the list of events ends after these bytes."""


class DamagedBlocks:
    """Recovery of entries from blocks that do not decode."""

    def __init__(self, table: Table, damage: DamageLog, *, is_bare: bool) -> None:
        self._table = table
        self._damage = damage
        self._is_bare = is_bare
        self._kept: list[Any] = []
        self._positions: list[int] = []
        self._is_within = False
        """Whether skipped text continues beyond its block; then its damage is already logged."""

    def take(self, data: bytes, offset: int, *, is_last: bool) -> Taken:
        """Read the recoverable part of ``data``, which starts at an entry; return the progress.

        Unless ``is_last``, an entry that ends beyond ``data`` is left for the next call.
        """
        view = memoryview(data)
        between = [match.span() for match in BETWEEN.finditer(data)]
        begins = [end for _, end in between]
        at, window = 0, len(between) // 2
        # Inside an entry that is too long, only the start of the next entry is searched.
        if self._is_within and not is_last:
            if not between:
                return Taken(max(0, len(data) - _OVERLAP))
            at = begins[0]
        # A successful decode doubles the size of the next part, a failed decode quarters it. A bad
        # entry among thousands then costs a few more decodes, and the others use the fast path.
        while True:
            ahead = bisect_right(begins, at)
            window = min(max(1, window), len(between) - ahead)
            end, begin = between[ahead + window - 1] if window else (at, at)
            if window and self._take_block(view[at : end + 1], offset + at):
                at, window = begin, 2 * window
            elif window > 1:
                window //= 4
            else:
                near = begins[ahead : ahead + _MAX_INNER]
                taken = self._take_one(data, at, offset, near, is_last=is_last)
                if taken is None or taken.ended:
                    self._flush()
                    return taken or Taken(_skip(_BLANK, data, at))
                at = taken.size

    def _take_block(self, text: memoryview, offset: int) -> bool:
        block = decode(text)
        if block is None:
            return False
        # Must run first, because rows are in file order and single entries precede the block.
        self._flush()
        self._is_within = False
        self._table.add(block.entries, block.positions() + offset)
        return True

    def _take_one(
        self, data: bytes, at: int, offset: int, begins: list[int], *, is_last: bool
    ) -> Taken | None:
        at = _skip(_BLANK, data, at)
        if at == len(data):
            return Taken(at, ended=True) if is_last else None
        if data[at] == ord("]"):
            return self._take_end(data, at, offset, is_last=is_last)
        if data[at] != ord("{"):
            self._lose("not_an_event", data, at, offset)
            return Taken(_skip(_NO_ENTRY, data, at))
        parsed, may_continue = self._parse(data, at, offset, begins)
        if parsed is not None:
            return Taken(at + parsed.end)
        if not is_last and len(data) - at < LONGEST_ENTRY and (may_continue or not begins):
            return None
        return self._take_damaged(
            data, at, offset, begins, may_continue=may_continue, is_last=is_last
        )

    def _take_end(self, data: bytes, at: int, offset: int, *, is_last: bool) -> Taken | None:
        after = _skip(_BLANK, data, at + 1)
        if after == len(data) and not is_last:
            return None
        if self._is_bare:
            ends = not _EVENT_AFTER.match(data, at + 1)
        else:
            ends = _FIELD_AFTER.match(data, at + 1) is not None
        if ends:
            return Taken(at + 1, ended=True)
        self._lose("unexpected_text", data, at, offset)
        return Taken(_skip(_BRACKETS, data, at))

    def _parse(
        self, data: bytes, at: int, offset: int, begins: list[int]
    ) -> tuple[Parsed | None, bool]:
        """Return the entry at ``at`` (None: unreadable), and whether more data might help."""
        # An apparent next entry may be inside a string of this entry. Possible ends are therefore
        # tried at doubling distances: an entry is parsed a few times, not once for each brace.
        powers = [1 << power for power in range(_MAX_INNER.bit_length())]
        limits = [begins[count - 1] for count in powers if count <= len(begins)]
        if len(begins) < _MAX_INNER:
            known = max(limits, default=at)
            limits_by_size = sorted({min(len(data), at + size) for size in _EXAMINED_BYTES})
            limits += [limit for limit in limits_by_size if limit > known]
        for limit in limits:
            text, damage = _to_text(data[at:limit])
            try:
                parsed = parse_value(text)
            except RecursionError:
                return None, False
            except json.JSONDecodeError as error:
                if not is_cut(error, text):
                    return None, False
                continue
            self._keep(parsed.value, damage | parsed.damage, offset + at)
            size = len(text[: parsed.end].encode("utf-8", "surrogateescape"))
            return parsed._replace(end=size), False
        return None, len(begins) < _MAX_INNER

    def _take_damaged(
        self,
        data: bytes,
        at: int,
        offset: int,
        begins: list[int],
        *,
        may_continue: bool,
        is_last: bool,
    ) -> Taken:
        if begins:
            limit = begins[0]
        elif end := LAST_ENTRY.search(data, at):
            limit = end.end()
        elif is_last:
            self._lose("truncated" if may_continue else "unreadable_event", data, at, offset)
            return Taken(len(data), ended=True)
        else:
            self._lose("unreadable_event", data, at, offset)
            self._is_within = True
            # The overlap is kept, because the end of the data may cut a boundary between entries.
            return Taken(len(data) - _OVERLAP)
        self._mend(data, at, offset, limit)
        self._is_within = False
        return Taken(limit)

    def _mend(self, data: bytes, at: int, offset: int, limit: int) -> None:
        text, damage = _to_text(data[at:limit])
        try:
            mended = mend_value(text)
        except RecursionError:
            self._lose("too_deep", data, at, offset)
            return
        if mended is None:
            self._lose("unreadable_event", data, at, offset)
        else:
            self._keep(mended.value, damage | mended.damage, offset + at)

    def _keep(self, value: Any, damage: dict[str, str], position: int) -> None:
        self._is_within = False
        entry = coerce_entry(value, damage)
        for kind, example in damage.items():
            self._damage.add(kind, position, example)
        if isinstance(entry, str):
            self._table.add_unknown(entry)
        elif entry is not None:
            self._kept.append(entry)
            self._positions.append(position)
            if len(self._kept) >= _MAX_BATCH:
                self._flush()

    def _flush(self) -> None:
        if self._kept:
            self._table.add(self._kept, np.array(self._positions, np.int64))
            self._kept, self._positions = [], []

    def _lose(self, kind: str, data: bytes, at: int, offset: int) -> None:
        if not self._is_within and not (kind == "truncated" and kind in self._damage):
            self._damage.add(kind, offset + at, data[at : at + 120].decode("latin-1"))


def _skip(pattern: re.Pattern[bytes], data: bytes, at: int) -> int:
    match = pattern.match(data, at)
    return match.end() if match else at


def _to_text(data: bytes) -> tuple[str, dict[str, str]]:
    try:
        return data.decode(), {}
    except UnicodeDecodeError as error:
        example = data[max(0, error.start - 20) : error.end + 20].decode("utf-8", "replace")
        return data.decode("utf-8", "surrogateescape"), {"invalid_utf8": example}
