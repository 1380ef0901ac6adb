"""Which events of a trace become spans, when a screen can show so many, and what of the rest?

Kept are, in turn, the longest events, the longest on the critical path and one whole example of
each pattern, always with everything above them. The rest is rolled up: one span for each parent and
name, with count, sum, min and max. No time is lost: durations of what is kept and sums of the
roll-ups add up to the trace's total, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_mlperf.kineto.events import NONE
from otel_mlperf.kineto.patterns import NEVER, example_ranks, patterns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mlperf.kineto.events import Trace
    from otel_mlperf.kineto.places import Places

OTHERS: Final = NONE
"""The name of a roll-up that holds several names, for which the budget has no room."""
_LARGEST_PART: Final = 8
"""An example takes at most this part of the budget."""
_MOST_CELLS: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class RollUps:
    """Spans that stand for several events; a column for each field."""

    above: NDArray[np.int32]
    """Row of the kept event above; NONE: the anchor."""
    anchor: NDArray[np.int32]
    """As in ``Places``."""
    name: NDArray[np.int32]
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent of a trace."""

    kept: NDArray[np.bool_]
    roll_ups: RollUps


def choose(
    trace: Trace,
    places: Places,
    budgets: NDArray[np.int64] | None,
    critical: NDArray[np.bool_],
) -> Plan:
    """Decides for each event.

    Args:
        trace: the events.
        places: where each belongs.
        budgets: spans that each trace may have, roll-ups included; None: no limit.
        critical: events on the critical path.
    """
    keys = _keys(trace)
    kept = ~(places.never | places.hidden)
    if budgets is not None:
        ranks = places.forest.smallest(_ranks(trace, places, budgets, critical, keys))
        kept = _within(places, budgets, ranks, keys)
    roll_ups = _roll_up(trace, places, kept, keys)
    if budgets is not None:
        room = np.maximum(budgets - _per_trace(places, kept), 1)
        roll_ups = _merged(roll_ups, places, room)
    alone = _alone(places, roll_ups)
    kept[roll_ups.first[alone]] = True
    return Plan(kept, _those(roll_ups, ~alone))


def _keys(trace: Trace) -> NDArray[np.int64]:
    """Name and category of each event as one number."""
    events = trace.events
    both = events.name.astype(np.int64) << 8 | events.category
    keys: NDArray[np.int64] = np.unique(both, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return keys


def _ranks(
    trace: Trace,
    places: Places,
    budgets: NDArray[np.int64],
    critical: NDArray[np.bool_],
    keys: NDArray[np.int64],
) -> NDArray[np.int64]:
    """How early each event is kept for its own sake: the best of its places in three lists."""
    events, group = trace.events, places.trace
    out = places.never | places.hidden
    longest = _order_in_trace(group, events.duration_ns, ~out)
    on_path = _order_in_trace(group, events.duration_ns, critical & ~out)
    pattern = patterns(places.forest, np.where(out, 0, keys + 1), group)
    times = (events.start_ns, np.where(out, 0, events.duration_ns))
    shown = example_ranks(places.forest, pattern, group, times, budgets // _LARGEST_PART)
    return np.where(out, NEVER, np.minimum(np.minimum(longest, on_path), shown))


def _order_in_trace(
    group: NDArray[np.int32], duration: NDArray[np.int64], wanted: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Each wanted event's place among those of its trace, longest first; NEVER for the others."""
    rows = np.flatnonzero(wanted)
    order = rows[np.lexsort((-duration[rows], group[rows]))]
    begins = np.searchsorted(group[order], group[order])
    found = np.full(len(group), NEVER)
    found[order] = np.arange(len(order)) - begins
    return found


def _within(
    places: Places,
    budgets: NDArray[np.int64],
    ranks: NDArray[np.int64],
    keys: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """The events up to the rank at which each trace is full, found by halving."""
    group, candidates = places.trace, ranks < NEVER
    whole = _used(places, candidates, keys) <= budgets
    fits = np.where(whole, NEVER - 1, np.int64(NONE))
    full = np.where(whole, NEVER, np.maximum(budgets, 0) + 1)  # the longest alone are too many
    while (full - fits > 1).any():
        tried = fits + (full - fits) // 2
        good = _used(places, candidates & (ranks <= tried[group]), keys) <= budgets
        fits, full = np.where(good, tried, fits), np.where(good, full, tried)
    return candidates & (ranks <= fits[group])


def _used(places: Places, kept: NDArray[np.bool_], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many spans each trace has: what is kept, and a roll-up for each parent and name."""
    rest = np.flatnonzero(~(kept | places.hidden))
    many, place = int(kept.sum()), np.cumsum(kept) - 1
    above = places.forest.nearest(kept)[rest]
    where = np.where(above == NONE, many + places.anchor[rest], place[above]).astype(np.int64)
    width = int(keys.max(initial=0)) + 1
    cells, size = where * width + keys[rest], (many + len(places.anchor_span)) * width
    if size <= _MOST_CELLS:
        seen = np.zeros(size, bool)
        seen[cells] = True
        cells = np.flatnonzero(seen)
    else:
        cells = np.unique(cells)
    owner = np.concatenate((places.trace[kept], places.anchor_trace))
    rolled = np.bincount(owner[cells // width], minlength=len(places.traces))
    return _per_trace(places, kept) + rolled


def _per_trace(places: Places, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.bincount(places.trace[kept], minlength=len(places.traces)).astype(np.int64)


def _roll_up(
    trace: Trace, places: Places, kept: NDArray[np.bool_], keys: NDArray[np.int64]
) -> RollUps:
    """One row for each parent and name of what is not kept."""
    events = trace.events
    rest = np.flatnonzero(~(kept | places.hidden))
    above, keys = places.forest.nearest(kept)[rest], keys[rest]
    where = np.where(above == NONE, len(kept) + places.anchor[rest], above).astype(np.int64)
    order = np.lexsort((events.position[rest], events.start_ns[rest], keys, where))
    rest, above, keys, where = rest[order], above[order], keys[order], where[order]
    new = np.ones(len(rest), bool)
    new[1:] = (np.diff(keys) != 0) | (np.diff(where) != 0)
    begins = np.flatnonzero(new)
    first = rest[begins].astype(np.int32)
    start, spent = events.start_ns[rest], events.duration_ns[rest]
    return RollUps(
        above=above[begins],
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


def _alone(places: Places, roll_ups: RollUps) -> NDArray[np.bool_]:
    """Roll-ups of one event that could as well be a span: its parent is, and nothing is below."""
    parent = places.forest.parent
    inner = np.zeros(len(parent), bool)
    inner[parent[parent != NONE]] = True
    first = roll_ups.first
    could = ~inner[first] & ~places.never[first] & (parent[first] == roll_ups.above)
    alone: NDArray[np.bool_] = (roll_ups.count == 1) & (roll_ups.name != OTHERS) & could
    return alone


def _those(roll_ups: RollUps, which: NDArray[np.bool_]) -> RollUps:
    return RollUps(*(getattr(roll_ups, name)[which] for name in RollUps.__slots__))


def _merged(roll_ups: RollUps, places: Places, room: NDArray[np.int64]) -> RollUps:
    """The roll-ups with the smallest ones of a trace that has no room for all as one a category.

    Only a trace of which nothing is kept can be over: all its roll-ups hang under anchors.
    """
    group = places.anchor_trace[roll_ups.anchor]
    order = np.lexsort((-roll_ups.sum_ns, group))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.searchsorted(group[order], group[order])
    many = np.bincount(group, minlength=len(room))
    kinds = np.array([len(np.unique(roll_ups.category[group == one])) for one in range(len(room))])
    over = (many > room)[group] & (place >= np.maximum(room - kinds, 0)[group])
    if not over.any():
        return roll_ups
    joined = [
        _joined(roll_ups, np.flatnonzero(over & (group == one) & (roll_ups.category == category)))
        for one in np.unique(group[over]).tolist()
        for category in np.unique(roll_ups.category[over & (group == one)]).tolist()
    ]
    alone = np.flatnonzero(~over)
    columns = [
        np.concatenate((getattr(roll_ups, name)[alone], [getattr(one, name)[0] for one in joined]))
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
    found: NDArray[np.int64] = function.reduceat(values, begins) if len(begins) else values[:0]
    return found
