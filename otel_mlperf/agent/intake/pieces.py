"""Pieces of the rows of one poll, which can be processed one after another.

A section's row is written when the section ends, after the rows of all sections inside. The
enclosing section of a row can therefore be in a later piece. Each piece lists such sections, so
that they are treated as open when the piece is processed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_mlperf.journal.journal_reader import OPEN_TYPE
from otel_mlperf.journal.layout import Flag, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from otel_mlperf.journal.ring_scan import Rows

MAX_ROWS: Final = 8_192
"""Maximum number of rows in a piece."""


class Piece(NamedTuple):
    """Consecutive rows of one poll."""

    rows: Rows
    next: int
    """Slot at which the next poll would start reading if this were the last piece."""
    holes: list[int]
    around: bytes
    """Sections (OPEN_TYPE) that enclose rows of this or earlier pieces and end in a later piece."""


def cut_rows(rows: Rows, begin: int, next_: int, holes: list[int]) -> Iterator[Piece]:
    """Split the rows of a poll of the slots from ``begin`` to ``next_ - 1``, except ``holes``."""
    if len(rows) <= MAX_ROWS:
        yield Piece(rows, next_, holes, b"")
        return
    kind = rows["flags"] & 15
    at_row = np.flatnonzero((kind == Kind.SECTION) | (kind == Kind.CANCEL))
    ended, ends_in = rows[at_row], at_row // MAX_ROWS
    started_at = np.flatnonzero(kind == Kind.BEGIN)
    needed_from = _needed_from(ended, ends_in, rows[started_at], started_at // MAX_ROWS)
    is_section = ended["flags"] & 15 == Kind.SECTION
    for number, at in enumerate(range(0, len(rows), MAX_ROWS)):
        part, later = rows[at : at + MAX_ROWS], rows["seq"][at + MAX_ROWS :]
        begin = max(begin, int(part["seq"].max()) + 1)
        reached = begin if len(later) else next_
        missing = [*holes, *later[later < reached].tolist()]
        is_around = is_section & (needed_from <= number) & (number < ends_in)
        yield Piece(
            part,
            reached,
            sorted(slot for slot in missing if slot < reached),
            _as_open(ended[is_around]),
        )


def _needed_from(
    ended: Rows, ends_in: NDArray[np.int64], started: Rows, begins_in: NDArray[np.int64]
) -> NDArray[np.int64]:
    first = ends_in.copy()
    if not len(ended):
        return first
    _reach_pauses(ended, ends_in, first)
    above, is_inside = _find(ended, started["parent"])
    np.minimum.at(first, above[is_inside], begins_in[is_inside])
    root, has_root = _find(ended, ended["root"])
    np.minimum.at(first, root[has_root], ends_in[has_root])
    above, is_inside = _find(ended, ended["parent"])
    new = np.flatnonzero(is_inside & (first < first[above]))
    while len(new):
        np.minimum.at(first, above[new], first[new])
        reached = np.unique(above[new])
        new = reached[is_inside[reached] & (first[reached] < first[above[reached]])]
    return first


def _find(ended: Rows, ids: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    order = np.argsort(ended["span"])
    spans = ended["span"][order]
    above = order[np.minimum(np.searchsorted(spans, ids), len(spans) - 1)]
    return above, ended["span"][above] == ids


def _reach_pauses(ended: Rows, ends_in: NDArray[np.int64], first: NDArray[np.int64]) -> None:
    """Update ``first``, the first piece that needs each section, around garbage collections.

    Enclosing sections are found by their times, because rows of collections have no parent.
    """
    for i in np.flatnonzero(ended["flags"] & Flag.PAUSE).tolist():
        encloses = ended["start"] <= ended["start"][i]
        encloses &= ended["end"] >= ended["end"][i]
        first[encloses] = np.minimum(first[encloses], ends_in[i])


def _as_open(sections: Rows) -> bytes:
    table = np.zeros(len(sections), OPEN_TYPE)
    for field in OPEN_TYPE.names or ():
        table[field] = sections[field]
    return table.tobytes()
