"""Span budget: selection of the events that become spans, and roll-ups of the rest.

Events are kept as spans alternately from three lists, always with all their ancestors: the longest
events, the longest events on the critical path, and one complete example of each pattern. A pattern
is a name under a chain of ancestor names, e.g. the same operator in another layer or step. Its
example is the first occurrence. All other events are rolled up: one span for each parent and name,
with count, sum, min and max. No time is lost: the durations of the kept events and the sums of the
roll-ups exactly sum to the trace's total.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_mlperf.kineto.spans.rollups import RollUps, alone, merged, roll_up, those
from otel_mlperf.kineto.trace_events import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from otel_mlperf.kineto.linking.forest import Forest
    from otel_mlperf.kineto.spans.trace_assignment import Assignment
    from otel_mlperf.kineto.trace_events import Trace
    from otel_mlperf.settings.trace_sampler import Sampler

DEFAULT_SPANS: Final = 2_000
_LARGEST_PART: Final = 8
"""Reciprocal of the maximum share of the budget that one example may use."""
_MAX_CELLS: Final = 1 << 24
_SHALLOW: Final = 8
"""Limits of the depth that are at most this value are not reduced further."""
NEVER: Final = np.int32((1 << 31) - 1)
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


def patterns(
    forest: Forest, key: NDArray[np.int32], group: NDArray[np.signedinteger[Any]]
) -> NDArray[np.uint64]:
    """Return a hash of each event's pattern: its key, the keys of its ancestors, and its group."""
    own = _scrambled(key.astype(np.uint64) + np.uint64(1))
    mark = np.zeros(len(forest), np.uint64)
    for rows in forest.levels:
        above = forest.parent[rows]
        top = above == NONE
        start = _scrambled(group[rows].astype(np.uint64) ^ _ODD)
        mark[rows] = _scrambled(np.where(top, start, mark[above]) + own[rows])
    return mark


def example_ranks(
    forest: Forest,
    pattern: NDArray[np.uint64],
    group: NDArray[np.signedinteger[Any]],
    times: tuple[NDArray[np.int64], NDArray[np.int64]],
    largest: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Return the rank at which each event is kept as part of an example; NEVER if it is in none.

    The examples of a group are ordered by the total duration of their pattern, longest first. The
    rank is the number of events in the examples up to and including the event's own, minus 1.

    Args:
        forest: parents of the events.
        pattern: pattern of each event.
        group: group of each event; each group is ranked separately.
        times: start and duration of each event.
        largest: maximum number of events in an example of each group.
    """
    start, duration = times
    order = np.lexsort((start, pattern))  # Each pattern is a run, first occurrence first.
    alike = pattern[order]
    first = np.flatnonzero(np.append(len(alike) > 0, alike[1:] != alike[:-1]))
    del alike
    count = np.diff(first, append=len(order))
    spent = np.add.reduceat(duration[order], first) if len(first) else duration
    example = order[first]
    del order
    size = forest.sums(np.ones(len(forest), np.int32))
    fits = (count > 1) & (size[example] <= largest[group[example]])
    example, spent = example[fits], spent[fits]
    best = np.lexsort((start[example], -spent, group[example]))
    example = example[best]
    ranks = np.full(len(forest), NEVER)
    ranks[example] = _running(size[example], group[example])
    return forest.smallest_above(ranks)


def _running(size: NDArray[np.int32], group: NDArray[np.signedinteger[Any]]) -> NDArray[np.int64]:
    """Return the cumulative size in each item's group, minus 1; items are sorted by group."""
    total = np.cumsum(size, dtype=np.int64)
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    before = total[begins] - size[begins]
    running = total - np.repeat(before, np.diff(begins, append=len(group))) - 1
    # Limited to 32 bits, because events in nested examples are counted several times.
    return np.minimum(running, NEVER - 1)


def _scrambled(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return bits ^ (bits >> np.uint64(32))


@dataclass(frozen=True, slots=True)
class Budget:
    """Maximum number of spans, or of bytes, that are sent for each trace."""

    spans: int | None = DEFAULT_SPANS
    """Maximum number of spans of a trace, including recorded sections; None for no limit."""
    bytes: int | None = None
    """Maximum number of encoded bytes of a trace, without recorded sections; None for no limit."""
    by_trace: Mapping[str, int] = field(default_factory=dict)
    """Maximum number of spans of single traces, by hexadecimal trace id; replaces ``spans``."""

    @property
    def is_whole(self) -> bool:
        """Whether every event becomes a span, because neither spans nor bytes are limited."""
        return self.spans is None and self.bytes is None

    def of(self, places: Assignment) -> NDArray[np.int64]:
        """Return the maximum number of events and roll-ups to send for each trace of ``places``."""
        spans = DEFAULT_SPANS if self.spans is None and self.bytes is None else self.spans
        limit = np.int64(1 << 40) if spans is None else np.int64(spans)
        own = [self.by_trace.get(trace.hex(), limit) for trace in places.traces]
        return np.maximum(np.array(own, np.int64) - np.array(places.recorded, np.int64), 1)


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """Events of a trace that become spans of their own, and roll-ups of the other events."""

    kept: NDArray[np.bool_]
    roll_ups: RollUps

    def sampled(self, places: Assignment, sampler: Sampler) -> SpanPlan:
        """Return the plan reduced to the traces that ``sampler`` selects."""
        stays = np.array([sampler.samples(int(t.hex(), 16)) for t in places.traces], bool)
        of_roll_ups = places.anchor_trace[self.roll_ups.anchor]
        return SpanPlan(self.kept & stays[places.trace], those(self.roll_ups, stays[of_roll_ups]))


def choose(
    trace: Trace,
    places: Assignment,
    budgets: NDArray[np.int64] | None,
    critical: NDArray[np.bool_],
) -> SpanPlan:
    """Return which events become spans, and the roll-ups of the other events.

    Args:
        trace: the events.
        places: trace and parent of each event.
        budgets: maximum number of spans of each trace, including roll-ups; None for no limit.
        critical: whether each event is on the critical path.
    """
    keys = _keys(trace)
    # Without a budget, all events become spans, except ``never`` and ``hidden`` events.
    kept = ~(places.never | places.hidden)
    if budgets is not None:
        ranks = _ranks(trace, places, budgets, critical, keys)
        kept = _filled(places, budgets, ranks, keys)
        is_bare = _per_trace(places, kept) == 0
        if is_bare.any():
            # Roll-ups alone exceed the budget of these traces. Events are then chosen as if there
            # were one roll-up for each parent and category, and roll-ups are merged below.
            kinds = trace.events.category.astype(np.int32)
            kept |= is_bare[places.trace] & _filled(places, budgets, ranks, kinds)
    roll_ups = roll_up(trace, places, kept, keys)
    if budgets is not None:
        room = np.maximum(budgets - _per_trace(places, kept), 1)
        # Roll-ups count as spans: if a trace has too many of them, its smallest ones are merged.
        roll_ups = merged(roll_ups, places, room)
    single = alone(places, roll_ups)
    # A roll-up of one event is replaced by the event, which is also one span but more detailed.
    kept[roll_ups.first[single]] = True
    return SpanPlan(kept, those(roll_ups, ~single))


def _keys(trace: Trace) -> NDArray[np.int32]:
    events = trace.events
    both = events.name.astype(np.int64)
    both <<= 8
    both |= events.category
    present = np.zeros(int(both.max(initial=0)) + 1, np.bool_)
    present[both] = True
    keys: NDArray[np.int32] = (np.cumsum(present, dtype=np.int32) - 1)[both]
    return keys


def _ranks(
    trace: Trace,
    places: Assignment,
    budgets: NDArray[np.int64],
    critical: NDArray[np.bool_],
    keys: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Return each event's lowest position in the three lists; NEVER if it is in none of them."""
    events, group = trace.events, places.trace
    out = places.never | places.hidden
    ranks = example_ranks(
        places.forest,
        patterns(places.forest, np.where(out, 0, keys + 1), group),
        group,
        (events.start_ns, np.where(out, 0, events.duration_ns)),
        budgets // _LARGEST_PART,
    )
    # Lists are merged one by one into the same array, to save memory for millions of events.
    for wanted in (~out, critical & ~out):
        np.minimum(ranks, _order_in_trace(group, events.duration_ns, wanted), out=ranks)
    ranks[out] = NEVER
    return ranks


def _order_in_trace(
    group: NDArray[np.signedinteger[Any]], duration: NDArray[np.int64], wanted: NDArray[np.bool_]
) -> NDArray[np.int32]:
    rows = np.flatnonzero(wanted).astype(np.int32)
    order = rows[np.lexsort((-duration[rows], group[rows]))]
    del rows
    inside = group[order]
    begins = np.searchsorted(inside, np.arange(int(group.max(initial=0)) + 1)).astype(np.int32)
    places = np.full(len(group), NEVER)
    places[order] = np.arange(len(order), dtype=np.int32) - begins[inside]
    return places


def _filled(
    places: Assignment,
    budgets: NDArray[np.int64],
    ranks: NDArray[np.int32],
    keys: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Return whether each event is kept as a span within the budget of its trace.

    An event is only kept with all its ancestors. If an event is so deep that its ancestors exceed
    the budget, it would exclude all events of later rank. While less than half of a budget is used,
    events below half of the depth are therefore rolled up, then below a quarter, and so on.
    """
    limit, group = budgets.copy(), places.trace
    while True:
        # An event gets the minimum rank of its descendants, so that ancestors of kept events are
        # kept.
        kept = _within(places, budgets, places.forest.smallest(ranks), keys)
        deepest = len(places.forest.levels)
        is_poor = 2 * _used(places, kept, keys) < budgets
        is_poor |= _per_trace(places, kept) == 0
        is_poor &= np.minimum(limit, deepest) > _SHALLOW
        if not is_poor.any() or deepest <= limit[is_poor].min():
            return kept
        limit = np.where(is_poor, np.minimum(limit, deepest) // 2, limit)
        is_deep = (places.forest.depth() >= limit[group]) & is_poor[group]
        ranks = np.where(is_deep, NEVER, ranks)


def _within(
    places: Assignment,
    budgets: NDArray[np.int64],
    ranks: NDArray[np.int32],
    keys: NDArray[np.int32],
) -> NDArray[np.bool_]:
    """Return whether each event is kept, by rank: as many as the budget of its trace allows."""
    group, candidates = places.trace, ranks < NEVER
    whole = _used(places, candidates, keys) <= budgets
    fits = np.where(whole, NEVER - 1, np.int64(NONE))
    # This rank exceeds the budget, because the list of longest events alone has more events.
    full = np.where(whole, NEVER, np.clip(budgets, 0, NEVER - 2) + 1)
    while (full - fits > 1).any():
        # All traces are bisected in parallel. The number of spans cannot be computed from a rank,
        # because roll-ups depend on the kept events.
        tried = fits + (full - fits) // 2
        good = _used(places, candidates & (ranks <= tried.astype(np.int32)[group]), keys) <= budgets
        fits, full = np.where(good, tried, fits), np.where(good, full, tried)
    chosen: NDArray[np.bool_] = candidates & (ranks <= fits.astype(np.int32)[group])
    return chosen


def _used(
    places: Assignment, kept: NDArray[np.bool_], keys: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return the number of spans of each trace: kept events, and a roll-up per parent and key."""
    rest = np.flatnonzero(~(kept | places.hidden))
    many, place = int(kept.sum()), np.cumsum(kept, dtype=np.int32) - 1
    above = places.forest.nearest(kept)[rest]
    width = int(keys.max(initial=0)) + 1
    cells = np.where(above == NONE, places.anchor[rest] + np.int64(many), place[above])
    size = (many + len(places.anchor_span)) * width
    del above, place
    cells *= width
    cells += keys[rest]
    # A table of flags is faster than sorting, but its memory is limited to 16 MiB.
    if size <= _MAX_CELLS:
        seen = np.zeros(size, bool)
        seen[cells] = True
        cells = np.flatnonzero(seen)
    else:
        cells = np.unique(cells)
    owner = np.concatenate((places.trace[kept], places.anchor_trace))
    rolled = np.bincount(owner[cells // width], minlength=len(places.traces))
    return _per_trace(places, kept) + rolled


def _per_trace(places: Assignment, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    return np.bincount(places.trace[kept], minlength=len(places.traces)).astype(np.int64)
