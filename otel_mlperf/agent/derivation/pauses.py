"""Placement of garbage collections in the section that encloses them.

A collection may happen between a section's clock and its place in the program's context. The
recorder therefore writes its time and track only. The enclosing section is one that contains all of
the collection. Two sections of one thread are never both half inside it, because it is one call on
that thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.journal.journal_reader import OPEN_TYPE, as_rows
from otel_mlperf.journal.layout import Flag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mlperf.agent.derivation.ended_steps import EndedStepRows
    from otel_mlperf.agent.model.journal_state import JournalState
    from otel_mlperf.journal.ring_scan import Rows

_NEVER: Final = 1 << 63
"""End time of open sections."""


def place_pauses(journal: JournalState, sections: Rows) -> Rows:
    """Assign each pause of new rows to its enclosing section: self times stay exact, and add up."""
    is_pause = sections["flags"] & Flag.PAUSE != 0
    if not is_pause.any():
        return sections
    sections = sections.copy()
    table = np.frombuffer(journal.open + journal.around, OPEN_TYPE)
    ended = np.concatenate((sections["span"], np.array(journal.stale, np.uint64)))
    still_open = as_rows(table[~np.isin(table["span"], ended)], _NEVER)
    around = np.concatenate((sections[~is_pause], still_open))
    for i in np.flatnonzero(is_pause).tolist():
        pause = sections[i]
        pause["parent"], pause["root"] = _place(journal, pause, around)
        # Move sections that finalizers recorded during the pause.
        inside = (sections["start"] >= pause["start"]) & (sections["end"] <= pause["end"])
        inside &= (sections["track"] == pause["track"]) & ~is_pause
        sections["parent"][inside & (sections["parent"] == pause["parent"])] = pause["span"]
    return sections


def _place(journal: JournalState, pause: Any, around: Rows) -> tuple[int, int]:
    """Return parent and root: the innermost section on its track, else the step open meanwhile."""
    holds = around[(around["start"] <= pause["start"]) & (around["end"] >= pause["end"])]
    mine = holds[holds["track"] == pause["track"]]
    if not len(mine):
        mine = holds[np.isin(holds["span"], np.fromiter(journal.roots, np.uint64))]
    if not len(mine):
        return journal.meta.run_span, journal.meta.run_span
    # Of sections that started at the same moment, the one that ended first is inside.
    inner = mine[np.lexsort((mine["end"], -mine["start"].astype(np.int64)))[0]]
    return int(inner["span"]), int(inner["root"])


def rows_by_section(
    ended: EndedStepRows, journal: JournalState
) -> Iterator[tuple[str, EndedStepRows]]:
    """Group the rows by the name of the section inside which they are reported.

    That is the section that a pause fell into, and the wait for data that a section is a part of;
    all other rows have an empty name.
    """
    rows, inside = ended.rows, ended.wait
    is_pause = rows["flags"] & Flag.PAUSE != 0
    if is_pause.any():
        names_of = dict(zip(rows["span"].tolist(), rows["name"].tolist(), strict=True))
        around = np.array([names_of.get(span, -1) for span in rows["parent"].tolist()])
        inside = np.where(is_pause, around, inside)
    for number in np.unique(inside).tolist():
        name = "" if number < 0 else str(journal.section(number)[1])
        yield name, ended.only(inside == number)
