"""Pieces of one look's rows that can be processed one by one.

A section's row is written when the section ends, after those of everything inside it. Each piece
therefore lists the sections around its rows that end in a later piece. At the end of the piece they
are treated as open, as they were.
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

MOST_ROWS: Final = 8_192
"""Maximum number of rows of a piece."""


class Piece(NamedTuple):
    """Consecutive rows of one look."""

    rows: Rows
    next: int
    """Start of the next look if this piece were the last one found."""
    holes: list[int]
    around: bytes
    """Sections (OPEN_TYPE) around rows up to here that end in a later piece."""


def cut_rows(rows: Rows, begin: int, next_: int, holes: list[int]) -> Iterator[Piece]:
    """Split the rows of one look, which started at slot ``begin`` and left ``holes`` behind it."""
    if len(rows) <= MOST_ROWS:
        yield Piece(rows, next_, holes, b"")
        return
    kind = rows["flags"] & 15
    at_row = np.flatnonzero((kind == Kind.SECTION) | (kind == Kind.CANCEL))
    ended, ends_in = rows[at_row], at_row // MOST_ROWS
    begun_at = np.flatnonzero(kind == Kind.BEGIN)
    needed_from = _needed_from(ended, ends_in, rows[begun_at], begun_at // MOST_ROWS)
    is_section = ended["flags"] & 15 == Kind.SECTION
    for number, at in enumerate(range(0, len(rows), MOST_ROWS)):
        part, later = rows[at : at + MOST_ROWS], rows["seq"][at + MOST_ROWS :]
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
    ended: Rows, ends_in: NDArray[np.int64], begun: Rows, begins_in: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return for each section row the first piece with something inside it; its own without any."""
    first = ends_in.copy()
    if not len(ended):
        return first
    _reach_pauses(ended, ends_in, first)
    above, is_inside = _find(ended, begun["parent"])
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
    """Return where sections of those ids are among ``ended``, and whether they are there at all."""
    order = np.argsort(ended["span"])
    spans = ended["span"][order]
    above = order[np.minimum(np.searchsorted(spans, ids), len(spans) - 1)]
    return above, ended["span"][above] == ids


def _reach_pauses(ended: Rows, ends_in: NDArray[np.int64], first: NDArray[np.int64]) -> None:
    """Extend sections around pauses, because a pause does not record its enclosing section."""
    for i in np.flatnonzero(ended["flags"] & Flag.PAUSE).tolist():
        holds = ended["start"] <= ended["start"][i]
        holds &= ended["end"] >= ended["end"][i]
        first[holds] = np.minimum(first[holds], ends_in[i])


def _as_open(sections: Rows) -> bytes:
    table = np.zeros(len(sections), OPEN_TYPE)
    for field in OPEN_TYPE.names or ():
        table[field] = sections[field]
    return table.tobytes()
