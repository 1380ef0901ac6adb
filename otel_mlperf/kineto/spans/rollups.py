"""How do the events that are no spans stand in one span for each parent and name?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.spans.trace_assignment import Assignment
    from otel_mlperf.kineto.trace_events import Trace

OTHERS: Final = NONE
"""The name of a roll-up that holds several names, for which the budget has no room."""


@dataclass(frozen=True, slots=True)
class RollUps:
    """Spans that stand for several events; a column for each field."""

    above: NDArray[np.int32]
    """Row of the kept event above; NONE: the anchor."""
    anchor: NDArray[np.signedinteger[Any]]
    """As in ``Assignment``."""
    name: NDArray[np.signedinteger[Any]]
    """Index into the trace's names, or OTHERS."""
    category: NDArray[np.uint8]
    first: NDArray[np.int32]
    """Row of the first of the events."""
    count: NDArray[np.int64]
    sum_ns: NDArray[np.int64]
    min_ns: NDArray[np.int64]
    max_ns: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.above)


def roll_up(
    trace: Trace, places: Assignment, kept: NDArray[np.bool_], keys: NDArray[np.int32]
) -> RollUps:
    """One row for each parent and name of what is not kept."""
    events = trace.events
    rest = np.flatnonzero(~(kept | places.hidden)).astype(np.int32)
    above, keys = places.forest.nearest(kept)[rest], keys[rest]
    # Behind the rows the anchors: what is above, in one number.
    where = np.where(above == NONE, np.int32(len(kept)) + places.anchor[rest], above)
    del above
    # By parent, name and time, of equal times by their place in the file: a roll-up is a run of
    # neighbours, its first event the earliest.
    order = np.lexsort((events.start_ns[rest], keys, where))
    rest, keys, where = rest[order], keys[order], where[order]
    del order
    new = np.ones(len(rest), bool)
    new[1:] = (np.diff(keys) != 0) | (np.diff(where) != 0)
    begins = np.flatnonzero(new)
    above = np.where(where[begins] < len(kept), where[begins], np.int32(NONE))
    del keys, where
    first = rest[begins]
    start, spent = events.start_ns[rest], events.duration_ns[rest]
    return RollUps(
        above=above,
        anchor=places.anchor[first],
        name=events.name[first],
        category=events.category[first],
        first=first,
        count=np.diff(begins, append=len(rest)).astype(np.int64),
        sum_ns=_reduced(np.add, spent, begins),
        min_ns=_reduced(np.minimum, spent, begins),
        max_ns=_reduced(np.maximum, spent, begins),
        start_ns=_reduced(np.minimum, start, begins),
        end_ns=_reduced(np.maximum, start + spent, begins),
    )


def alone(places: Assignment, roll_ups: RollUps) -> NDArray[np.bool_]:
    """Roll-ups of one event that could as well be a span: its parent is, and nothing is below."""
    parent = places.forest.parent
    inner = np.zeros(len(parent), bool)
    inner[parent[parent != NONE]] = True
    first = roll_ups.first
    could = ~inner[first] & ~places.never[first] & (parent[first] == roll_ups.above)
    alone: NDArray[np.bool_] = (roll_ups.count == 1) & (roll_ups.name != OTHERS) & could
    return alone


def those(roll_ups: RollUps, which: NDArray[np.bool_]) -> RollUps:
    """Some of the roll-ups."""
    return RollUps(*(getattr(roll_ups, name)[which] for name in RollUps.__slots__))


def merged(roll_ups: RollUps, places: Assignment, room: NDArray[np.int64]) -> RollUps:
    """The roll-ups with the smallest ones of a trace that has no room for all as one a category.

    Only a trace of which nothing is kept can be over: all its roll-ups hang under anchors.
    """
    group = places.anchor_trace[roll_ups.anchor]
    order = np.lexsort((-roll_ups.sum_ns, group))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(group[order], group[order])
    many = np.bincount(group, minlength=len(room))
    # One span a category is set aside for what is put together.
    kinds = np.array(
        [len(np.unique(roll_ups.category[group == trace])) for trace in range(len(room))]
    )
    over = (many > room)[group] & (place >= np.maximum(room - kinds, 0)[group])
    if not over.any():
        return roll_ups
    joined = [
        _joined(roll_ups, np.flatnonzero(over & (group == trace) & (roll_ups.category == category)))
        for trace in np.unique(group[over]).tolist()
        for category in np.unique(roll_ups.category[over & (group == trace)]).tolist()
    ]
    alone = np.flatnonzero(~over)
    columns = [
        np.concatenate(
            (getattr(roll_ups, name)[alone], [getattr(others, name)[0] for others in joined])
        )
        for name in RollUps.__slots__
    ]
    kinds_of = [getattr(roll_ups, name).dtype for name in RollUps.__slots__]
    return RollUps(*(column.astype(kind) for column, kind in zip(columns, kinds_of, strict=True)))


def _joined(roll_ups: RollUps, rows: NDArray[np.intp]) -> RollUps:
    """Several roll-ups as one that bears no name of its own."""
    first = rows[np.argmin(roll_ups.start_ns[rows])]
    return RollUps(
        above=roll_ups.above[[first]],
        anchor=roll_ups.anchor[[first]],
        name=np.array([OTHERS], np.int32),
        category=roll_ups.category[[first]],
        first=roll_ups.first[[first]],
        count=roll_ups.count[rows].sum(keepdims=True),
        sum_ns=roll_ups.sum_ns[rows].sum(keepdims=True),
        min_ns=roll_ups.min_ns[rows].min(keepdims=True),
        max_ns=roll_ups.max_ns[rows].max(keepdims=True),
        start_ns=roll_ups.start_ns[rows].min(keepdims=True),
        end_ns=roll_ups.end_ns[rows].max(keepdims=True),
    )


def _reduced(
    function: np.ufunc, values: NDArray[np.int64], begins: NDArray[np.intp]
) -> NDArray[np.int64]:
    """What a function makes of each run of consecutive values."""
    reduced: NDArray[np.int64] = function.reduceat(values, begins) if len(begins) else values[:0]
    return reduced


def roll_up_numbers(roll_ups: RollUps) -> dict[str, NDArray[np.int64]]:
    """What a roll-up says of the events that it stands for."""
    return {
        names.ROLLED_UP: roll_ups.count,
        names.ROLLED_UP_SUM: roll_ups.sum_ns,
        names.ROLLED_UP_MIN: roll_ups.min_ns,
        names.ROLLED_UP_MAX: roll_ups.max_ns,
    }
