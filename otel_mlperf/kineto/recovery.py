"""What can be kept of a block that does not decode?

The block is cut into smaller ones, down to single entries; those are read with care, or mended, or
skipped up to the next place that looks like the beginning of an entry. A long damaged file costs
some tens of microseconds for each damaged entry, and no more memory than a sound one.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_mlperf.kineto.blocks import BETWEEN, decode
from otel_mlperf.kineto.coerce import coerce_entry
from otel_mlperf.kineto.repair import CUT_CHARACTERS, CUT_MESSAGE, Parsed, mend_value, parse_value

if TYPE_CHECKING:
    from otel_mlperf.kineto.damage import DamageLog
    from otel_mlperf.kineto.table import Table

LONGEST_ENTRY: Final = 1 << 20
"""Bytes of text that an entry may have."""
_MOST_INNER: Final = 64
"""Places within one entry that look like the beginning of another."""
_BLANK: Final = re.compile(rb"[\s,]*")
_FIELD_AFTER: Final = re.compile(rb'\s*(?:\Z|\}|,\s*")')
_EVENT_AFTER: Final = re.compile(rb"\s*,?\s*\{")
LAST_ENTRY: Final = re.compile(rb'\}\s*(?=\]\s*(?:,\s*"|\}|\Z))')
_OVERLAP: Final = 1 << 12


class Taken(NamedTuple):
    """How far a damaged block was read."""

    size: int
    """Bytes that are done with."""
    ended: bool = False
    """The array ends there."""


class Recovery:
    """Takes apart what does not decode."""

    def __init__(self, table: Table, damage: DamageLog, *, is_bare: bool) -> None:
        self._table = table
        self._damage = damage
        self._is_bare = is_bare

    def take(self, data: bytes, offset: int, *, is_last: bool) -> Taken:
        """Read what can be read of ``data``, which begins at an entry.

        Unless ``is_last``, an entry that ends beyond ``data`` is left for the next call.
        """
        between = [(match.start() + 1, match.end()) for match in BETWEEN.finditer(data)]
        ends = [end for end, _ in between]
        view = memoryview(data)
        at, window = 0, max(1, len(between) // 2)
        while True:
            ahead = bisect_right(ends, at)
            window = min(window, len(ends) - ahead)
            if window and self._take_block(view[at : ends[ahead + window - 1]], offset + at):
                at = between[ahead + window - 1][1]
                window *= 2
            elif window > 1:
                window //= 4
                window = max(1, window)
            else:
                window = 1
                taken = self._take_one(data, at, offset, ends[ahead:], is_last=is_last)
                if taken is None or taken.ended:
                    return taken or Taken(at)
                at = taken.size

    def _take_block(self, text: memoryview, offset: int) -> bool:
        block = decode(text)
        if block is None:
            return False
        self._table.add(block.entries, block.positions() + offset)
        return True

    def _take_one(
        self, data: bytes, at: int, offset: int, ends: list[int], *, is_last: bool
    ) -> Taken | None:
        """One entry, or the end of the array; None if that needs more data."""
        at = _skip_blank(data, at)
        if at == len(data):
            if is_last:
                self._damage.add("truncated", offset + at, "the list of events has no end")
            return Taken(at, ended=True) if is_last else None
        if data[at] == ord("]"):
            return self._take_end(data, at, offset, is_last=is_last)
        parsed, is_cut = self._parse(data, at, offset, ends)
        if parsed is not None:
            return Taken(at + parsed.end)
        if not is_last and len(data) - at < LONGEST_ENTRY and (is_cut or not ends):
            return None
        return self._take_damaged(data, at, offset, ends, is_cut=is_cut, is_last=is_last)

    def _take_end(self, data: bytes, at: int, offset: int, *, is_last: bool) -> Taken | None:
        after = _skip_blank(data, at + 1)
        if after == len(data) and not is_last:
            return None
        if self._is_end(data, at):
            return Taken(at + 1, ended=True)
        self._damage.add("unexpected_text", offset + at, "] among events")
        return Taken(at + 1)

    def _is_end(self, data: bytes, at: int) -> bool:
        if self._is_bare:
            return not _EVENT_AFTER.match(data, at + 1)
        return _FIELD_AFTER.match(data, at + 1) is not None

    def _parse(
        self, data: bytes, at: int, offset: int, ends: list[int]
    ) -> tuple[Parsed | None, bool]:
        """What stands at ``at``, already kept; else whether it seems to go on beyond ``data``."""
        inner = [1 << power for power in range(_MOST_INNER.bit_length())]
        limits = [ends[count - 1] for count in inner if count <= len(ends)]
        if len(ends) < _MOST_INNER:
            limits.append(min(len(data), at + LONGEST_ENTRY))
        for limit in limits:
            text, damage = _to_text(data[at:limit])
            try:
                parsed = parse_value(text)
            except RecursionError:
                return None, False
            except json.JSONDecodeError as error:
                if error.pos < len(text) - CUT_CHARACTERS and CUT_MESSAGE not in error.msg:
                    return None, False
                continue
            self._keep(parsed.value, damage | parsed.damage, offset + at)
            size = len(text[: parsed.end].encode("utf-8", "surrogateescape"))
            return parsed._replace(end=size), False
        return None, len(ends) < _MOST_INNER

    def _take_damaged(
        self, data: bytes, at: int, offset: int, ends: list[int], *, is_cut: bool, is_last: bool
    ) -> Taken:
        """An entry that is not JSON: mended or lost."""
        if ends:
            limit = ends[0]
        elif end := LAST_ENTRY.search(data, at):
            limit = end.end()
        elif is_last:
            kind = "truncated" if is_cut else "unreadable_event"
            self._damage.add(kind, offset + at, data[at : at + 80].decode("latin-1"))
            return Taken(len(data), ended=True)
        else:
            self._damage.add("unreadable_event", offset + at, f"longer than {LONGEST_ENTRY} bytes")
            return Taken(len(data) - _OVERLAP)
        text, damage = _to_text(data[at:limit])
        try:
            mended = mend_value(text)
        except RecursionError:
            mended = None
            self._damage.add("too_deep", offset + at, text)
        else:
            if mended is None:
                self._damage.add("unreadable_event", offset + at, text)
        if mended is not None:
            self._keep(mended.value, damage | mended.damage, offset + at)
        return Taken(limit)

    def _keep(self, value: Any, damage: dict[str, str], position: int) -> None:
        entry = coerce_entry(value, damage)
        if isinstance(entry, str):
            self._table.add_unknown(entry)
        elif entry is not None:
            self._table.add([entry], np.array([position], np.int64))
        for kind, example in damage.items():
            self._damage.add(kind, position, example)


def _skip_blank(data: bytes, at: int) -> int:
    blank = _BLANK.match(data, at)
    return blank.end() if blank else at


def _to_text(data: bytes) -> tuple[str, dict[str, str]]:
    try:
        return data.decode(), {}
    except UnicodeDecodeError as error:
        example = data[max(0, error.start - 20) : error.end + 20].decode("utf-8", "replace")
        return data.decode("utf-8", "surrogateescape"), {"invalid_utf8": example}
