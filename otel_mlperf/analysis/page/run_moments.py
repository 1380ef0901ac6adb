"""What happened when in a run: epochs, validations, checkpoints, marks, restarts, warnings?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf import names
from otel_mlperf.analysis.summary.marks import of_first_rank

if TYPE_CHECKING:
    from otel_mlperf.analysis.summary.summary_shapes import Summary
    from otel_mlperf.store.table_reader import Store

_MOST: Final = 300
"""Of each kind: more of them nobody could tell apart."""
_EPOCHS: Final = """SELECT epoch, min(start_ns), max(end_ns) FROM steps
WHERE phase = $phase AND epoch IS NOT NULL GROUP BY epoch, restart ORDER BY min(start_ns)"""
# Steps of other phases without one of the main phase between them.
_PHASES: Final = """WITH ordered AS (
    SELECT phase, start_ns, end_ns,
           sum(CASE WHEN phase = $phase THEN 1 ELSE 0 END) OVER (ORDER BY start_ns) AS before
    FROM steps WHERE rank = (SELECT min(rank) FROM steps)
)
SELECT phase, min(start_ns) AS begin_ns, max(end_ns) FROM ordered WHERE phase <> $phase
GROUP BY phase, before ORDER BY begin_ns"""
# One row stands for all calls since the flush before: from the first one's begin.
_OUTSIDE: Final = """SELECT name, start_ns, sum_ns, count FROM sections
WHERE n IS NULL AND NOT beside AND category = $category
AND rank = (SELECT min(rank) FROM sections) ORDER BY start_ns"""
_RESTARTS: Final = """SELECT restart, min(start_ns) FROM processes WHERE restart > 0
GROUP BY restart ORDER BY restart"""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Something that began at a time."""

    kind: str
    """``epoch``, ``validation``, ``checkpoint``, ``mark``, ``restart`` or ``warning``."""
    name: str
    time_ns: int
    """Unix time."""
    duration_ns: int
    """0: it has none, or nobody knows it."""


def read_moments(store: Store, summary: Summary) -> list[Moment]:
    """In the order of their times; of a kind of which there are too many, none but the first."""
    phase = summary.steps.phase if summary.steps else ""
    found = [
        Moment(kind="epoch", name=f"epoch {epoch}", time_ns=begin, duration_ns=end - begin)
        for epoch, begin, end in store.rows(_EPOCHS, phase=phase)[:_MOST]
    ]
    validations = [
        Moment(kind="validation", name=name, time_ns=begin, duration_ns=end - begin)
        for name, begin, end in store.rows(_PHASES, phase=phase)[:_MOST]
    ]
    found += validations or _outside(store, "validation", names.PHASE)
    found += _outside(store, "checkpoint", names.CHECKPOINT)
    found += [
        Moment(kind="restart", name=f"restart {restart}", time_ns=begin, duration_ns=0)
        for restart, begin in store.rows(_RESTARTS)[:_MOST]
    ]
    return sorted(
        [*found, *_marks(summary), *_warnings(summary)], key=lambda moment: moment.time_ns
    )


def _outside(store: Store, kind: str, category: str) -> list[Moment]:
    return [
        Moment(
            kind=kind,
            name=f"{name} ×{count}" if count > 1 else name,
            time_ns=begin,
            # Of several calls only the first one's begin is known.
            duration_ns=spent if count == 1 else 0,
        )
        for name, begin, spent, count in store.rows(_OUTSIDE, category=category)[:_MOST]
    ]


def _marks(summary: Summary) -> list[Moment]:
    return [
        Moment(kind="mark", name=mark.name, time_ns=mark.time_ns, duration_ns=0)
        for mark in of_first_rank(summary.marks)
    ][:_MOST]


def _warnings(summary: Summary) -> list[Moment]:
    return [
        Moment(
            kind="warning",
            name=finding.id.replace("_", " "),
            time_ns=summary.started_ns + warned.after_ns,
            duration_ns=warned.held_ns,
        )
        for finding in summary.findings
        for warned in finding.warned
    ][:_MOST]
