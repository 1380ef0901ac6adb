"""Share of a step in which its task waited while sections of other tasks of the thread ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.intervals import union

if TYPE_CHECKING:
    from otel_mlperf.store.table_reader import Store

_SECTIONS: Final = """WITH steps AS (
    SELECT rank, restart, trace_id, span_id, track, thread_id, start_ns, end_ns,
        row_number() OVER () AS step
    FROM spans WHERE phase = $phase AND n >= $first AND span_id = root_id
    AND kind = 'section' AND NOT interrupted AND thread_id >= 0
)
SELECT t.step, t.end_ns - t.start_ns, greatest(s.start_ns, t.start_ns), least(s.end_ns, t.end_ns),
    s.track = t.track
FROM steps t LEFT JOIN spans s ON s.rank = t.rank AND s.restart = t.restart
    AND s.trace_id = t.trace_id AND s.thread_id = t.thread_id AND s.span_id <> t.span_id
    AND s.kind = 'section'"""


def read_awaited_share(store: Store, phase: str, *, has_warm_up: bool) -> float:
    """Return the share of the steps' time, 0.0 to 1.0, in which the steps awaited other tasks.

    A step that awaits other asyncio tasks, as in asyncio.gather, is in no section itself, but
    sections of the other tasks explain the step's time. Sections of other threads are excluded,
    because it is unknown whether the step waited for them. Only steps with sampled spans are
    evaluated.
    """
    rows = store.rows(_SECTIONS, phase=phase, first=1 if has_warm_up else 0)
    total = sum({step: duration for step, duration, *_ in rows}.values())
    inside = [(step, start, end, own) for step, _, start, end, own in rows if start is not None]
    if not total or not inside:
        return 0.0
    step, start, end, own = (np.array(column) for column in zip(*inside, strict=True))
    own = own.astype(bool)
    together = int(union(start, end, step).length_ns.sum())
    return (together - int(union(start[own], end[own], step[own]).length_ns.sum())) / int(total)
