"""How is a section visible that has been open for hours?

Every ten minutes it leaves a finished child *segment*; its id follows from the section's, so that
an agent that replays sends the same. The section itself is sent once, when it ends. Segments are no
items of the accounts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.agent.model.kept_span import Kept, made_id
from otel_mlperf.journal.journal_reader import OPEN_TYPE

if TYPE_CHECKING:
    from otel_mlperf.agent.model.journal_state import JournalState

SEGMENT_NS: Final = 600 * 10**9


def segments(journal: JournalState, now_ns: int) -> list[Kept]:
    """The segments that are due at ``now_ns`` (monotonic)."""
    if journal.left:
        return []
    table = np.frombuffer(journal.open, OPEN_TYPE)
    long_open = table[table["start"] + np.uint64(SEGMENT_NS) <= np.uint64(now_ns)]
    # A stale entry is a section that has ended: its row is here.
    still = {int(span) for span in long_open["span"]} - set(journal.stale)
    journal.segments = {s: n for s, n in journal.segments.items() if s in still}
    made = []
    for row in long_open:
        span, start = int(row["span"]), int(row["start"])
        if span not in still:
            continue
        first, due = journal.segments.get(span, 0), (now_ns - start) // SEGMENT_NS
        fields = (int(row["root"]), int(row["name"]), int(row["track"]))
        made += [_segment(journal, span, start, k, *fields) for k in range(first, due)]
        journal.segments[span] = due
    return made


def _segment(
    journal: JournalState, span: int, start: int, k: int, root: int, name: int, track: int
) -> Kept:
    return Kept(
        journal=journal,
        span=made_id(f"{span:x}/{k}"),
        parent=span,
        trace=journal.trace_of(root),
        start=start + k * SEGMENT_NS,
        end=start + (k + 1) * SEGMENT_NS,
        name=name,
        track=track,
        root=root,
        reason=names.SPAN_SEGMENT,
        kind="segment",
        payload={"a": {names.SEGMENT_OF: journal.section(name)[1]}},
    )
