"""Roll-ups: one span for each parent and name of the events without a span of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf import names
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.spans.trace_assignment import Assignment
    from otel_mlperf.kineto.trace_events import Trace

OTHERS: Final = NONE
"""Name of a roll-up of events with several names, which were merged to meet the budget."""


@dataclass(frozen=True, slots=True)
class RollUps:
    """Roll-up spans, each of which represents several events; one column for each field."""

    above: NDArray[np.int32]
    """Row of the kept event that is the parent; NONE if the parent is the anchor."""
    anchor: NDArray[np.signedinteger[Any]]
    """Index of the anchor, as in ``Assignment.anchor``."""
    name: NDArray[np.signedinteger[Any]]
    """Index into the trace's names, or OTHERS."""
    category: NDArray[np.uint8]
    first: NDArray[np.int32]
    """Row of the first of the represented events."""
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
    """Return the roll-ups of events that are not ``kept``: one for each parent and key (name)."""
    events = trace.events
    rest = np.flatnonzero(~(kept | places.hidden)).astype(np.int32)
    above, keys = places.forest.nearest(kept)[rest], keys[rest]
    # Anchors are numbered after the rows, so that one number identifies any parent.
    where = np.where(above == NONE, np.int32(len(kept)) + places.anchor[rest], above)
    del above
    # Sorted by parent, name and time, equal times by position in the file: each roll-up is a run of
    # neighbours that starts with its earliest event.
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
    """Return whether each roll-up represents a single event that could have a span of its own."""
    parent = places.forest.parent
    inner = np.zeros(len(parent), bool)
    inner[parent[parent != NONE]] = True
    first = roll_ups.first
    could = ~inner[first] & ~places.never[first] & (parent[first] == roll_ups.above)
    alone: NDArray[np.bool_] = (roll_ups.count == 1) & (roll_ups.name != OTHERS) & could
    return alone


def those(roll_ups: RollUps, which: NDArray[np.bool_] | NDArray[np.intp]) -> RollUps:
    """Return the roll-ups that ``which`` selects, as a mask or by index."""
    return RollUps(*(getattr(roll_ups, name)[which] for name in RollUps.__slots__))


def merged(roll_ups: RollUps, places: Assignment, room: NDArray[np.int64]) -> RollUps:
    """Return the roll-ups; if a trace has more than its ``room``, merge the smallest of them.

    They are merged by parent and category or, if this leaves too many, by category.
    """
    group = places.anchor_trace[roll_ups.anchor]
    order = np.lexsort((-roll_ups.sum_ns, group))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(group[order], group[order])
    many = np.bincount(group, minlength=len(room))
    cell = _numbered(group, roll_ups.category, roll_ups.above, roll_ups.anchor)
    aside = _per_group(group, cell, len(room))
    is_crowded = (aside > room)[group]
    if is_crowded.any():
        cell = np.where(is_crowded, -1 - _numbered(group, roll_ups.category), cell)
        aside = _per_group(group, cell, len(room))
    # Room for one merged roll-up of each cell is reserved.
    over = (many > room)[group] & (place >= np.maximum(room - aside, 0)[group])
    if not over.any():
        return roll_ups
    columns = zip(
        _columns(those(roll_ups, ~over)),
        _columns(_joined(those(roll_ups, over), cell[over])),
        strict=True,
    )
    return RollUps(*(np.concatenate(both) for both in columns))


def _numbered(*columns: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    both = np.stack([column.astype(np.int64) for column in columns])
    return np.unique(both, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _per_group(
    group: NDArray[np.integer[Any]], cell: NDArray[np.int64], groups: int
) -> NDArray[np.int64]:
    first = np.unique(cell, return_index=True)[1]
    return np.bincount(group[first], minlength=groups)


def _columns(roll_ups: RollUps) -> list[NDArray[Any]]:
    return [getattr(roll_ups, name) for name in RollUps.__slots__]


def _joined(roll_ups: RollUps, cell: NDArray[np.int64]) -> RollUps:
    order = np.lexsort((roll_ups.start_ns, cell))
    ordered = cell[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    columns = RollUps(*(column[order] for column in _columns(roll_ups)))
    first = those(columns, begins)
    return replace(
        first,
        name=np.full_like(first.name, OTHERS),
        count=_reduced(np.add, columns.count, begins),
        sum_ns=_reduced(np.add, columns.sum_ns, begins),
        min_ns=_reduced(np.minimum, columns.min_ns, begins),
        max_ns=_reduced(np.maximum, columns.max_ns, begins),
        end_ns=_reduced(np.maximum, columns.end_ns, begins),
    )


def _reduced(
    function: np.ufunc, values: NDArray[np.int64], begins: NDArray[np.intp]
) -> NDArray[np.int64]:
    reduced: NDArray[np.int64] = function.reduceat(values, begins) if len(begins) else values[:0]
    return reduced


def roll_up_numbers(roll_ups: RollUps) -> dict[str, NDArray[np.int64]]:
    """Return the numeric attributes of roll-ups, by name: count, sum, minimum and maximum."""
    return {
        names.ROLLED_UP: roll_ups.count,
        names.ROLLED_UP_SUM: roll_ups.sum_ns,
        names.ROLLED_UP_MIN: roll_ups.min_ns,
        names.ROLLED_UP_MAX: roll_ups.max_ns,
    }
