"""Span budget: selection of the events that become spans, and roll-ups of the rest.

Three kinds of events are kept, in turn: the longest events, the longest on the critical path, and
one whole example of each pattern; always with everything above them. A pattern is a name under a
chain of names: the same operator in the same place of another layer or step. Its example is the
first occurrence. The rest is rolled up: one span for each parent and name, with count, sum, min
and max. No time is lost: durations of the kept events and sums of the roll-ups add up to the
trace's total, exactly.
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
"""Divisor: an example takes at most this part of the budget."""
_MOST_CELLS: Final = 1 << 24
_SHALLOW: Final = 8
"""A depth to which events are shown in any case."""
NEVER: Final = np.int32((1 << 31) - 1)
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)


def patterns(
    forest: Forest, key: NDArray[np.int32], group: NDArray[np.signedinteger[Any]]
) -> NDArray[np.uint64]:
    """Return a number for the pattern of each event: its key, those above it, and its group."""
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
    """Return the number of events shown once each is shown within an example; NEVER for none.

    Args:
        forest: which event is above which.
        pattern: pattern of each event.
        group: group of each event; each group is ranked separately.
        times: start and duration of each event.
        largest: maximum number of events in an example of each group.
    """
    start, duration = times
    order = np.lexsort((start, pattern))  # each pattern is a run starting with its first occurrence
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
    """Return the sum of sizes up to each item within its group; items are sorted by group."""
    total = np.cumsum(size, dtype=np.int64)
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    before = total[begins] - size[begins]
    running = total - np.repeat(before, np.diff(begins, append=len(group))) - 1
    # An event is in as many examples as are above it: a rank beyond the last counts as never.
    return np.minimum(running, NEVER - 1)


def _scrambled(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return bits ^ (bits >> np.uint64(32))


@dataclass(frozen=True, slots=True)
class Budget:
    """Budget: how much of each trace is sent."""

    spans: int | None = DEFAULT_SPANS
    """Maximum number of spans of one trace, recorded sections included; None: every event is one.
    """
    bytes: int | None = None
    """Maximum encoded bytes of one trace, without the recorded sections."""
    by_trace: Mapping[str, int] = field(default_factory=dict)
    """Maximum number of spans of single traces, by their id in hexadecimal: instead of ``spans``.
    """

    @property
    def is_whole(self) -> bool:
        """Return whether every event is a span."""
        return self.spans is None and self.bytes is None

    def of(self, places: Assignment) -> NDArray[np.int64]:
        """Return the maximum number of events and roll-ups of each trace."""
        spans = DEFAULT_SPANS if self.spans is None and self.bytes is None else self.spans
        most = np.int64(1 << 40) if spans is None else np.int64(spans)
        own = [self.by_trace.get(trace.hex(), most) for trace in places.traces]
        return np.maximum(np.array(own, np.int64) - np.array(places.recorded, np.int64), 1)


@dataclass(frozen=True, slots=True)
class SpanPlan:
    """Span plan: the events of a trace that are sent, and the roll-ups."""

    kept: NDArray[np.bool_]
    roll_ups: RollUps

    def sampled(self, places: Assignment, sampler: Sampler) -> SpanPlan:
        """Return the same plan for only those traces that a sampler selects."""
        stays = np.array([sampler.samples(int(t.hex(), 16)) for t in places.traces], bool)
        of_roll_ups = places.anchor_trace[self.roll_ups.anchor]
        return SpanPlan(self.kept & stays[places.trace], those(self.roll_ups, stays[of_roll_ups]))


def choose(
    trace: Trace,
    places: Assignment,
    budgets: NDArray[np.int64] | None,
    critical: NDArray[np.bool_],
) -> SpanPlan:
    """Decide for each event whether it becomes a span.

    Args:
        trace: the events.
        places: the assignment of each event.
        budgets: spans that each trace may have, roll-ups included; None: no limit.
        critical: events on the critical path.
    """
    keys = _keys(trace)
    # Without a budget every event is a span, except those that never are.
    kept = ~(places.never | places.hidden)
    if budgets is not None:
        ranks = _ranks(trace, places, budgets, critical, keys)
        kept = _filled(places, budgets, ranks, keys)
        is_bare = _per_trace(places, kept) == 0
        if is_bare.any():
            # There are more names than room, whatever is kept: names of one parent share a roll-up
            # then.
            kinds = trace.events.category.astype(np.int32)
            kept |= is_bare[places.trace] & _filled(places, budgets, ranks, kinds)
    roll_ups = roll_up(trace, places, kept, keys)
    if budgets is not None:
        room = np.maximum(budgets - _per_trace(places, kept), 1)
        # Roll-ups are spans too: if a trace has more names than room, its last ones are merged.
        roll_ups = merged(roll_ups, places, room)
    single = alone(places, roll_ups)
    # A roll-up of one event contains less than the event and takes as much room.
    kept[roll_ups.first[single]] = True
    return SpanPlan(kept, those(roll_ups, ~single))


def _keys(trace: Trace) -> NDArray[np.int32]:
    """Return name and category of each event as one number."""
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
    """Return how early each event is kept for its own sake: its best place in three lists."""
    events, group = trace.events, places.trace
    out = places.never | places.hidden
    ranks = example_ranks(
        places.forest,
        patterns(places.forest, np.where(out, 0, keys + 1), group),
        group,
        (events.start_ns, np.where(out, 0, events.duration_ns)),
        budgets // _LARGEST_PART,
    )
    # One after the other and into the same column: for millions of events each takes much memory.
    for wanted in (~out, critical & ~out):
        np.minimum(ranks, _order_in_trace(group, events.duration_ns, wanted), out=ranks)
    ranks[out] = NEVER
    return ranks


def _order_in_trace(
    group: NDArray[np.signedinteger[Any]], duration: NDArray[np.int64], wanted: NDArray[np.bool_]
) -> NDArray[np.int32]:
    """Return each wanted event's place in its trace, longest first; NEVER for the others."""
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
    """Return the events that fill the budget of each trace.

    An event may be so deep that everything above it has no room: it would keep everything else
    out. Such events are rolled up, from half of the depth downwards, and half of that, until the
    budget is used.
    """
    limit, group = budgets.copy(), places.trace
    while True:
        # An event is kept as early as anything below it: every shown event has all that is above
        # it.
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
    """Return the events up to the rank at which each trace is full, found by bisection."""
    group, candidates = places.trace, ranks < NEVER
    whole = _used(places, candidates, keys) <= budgets
    fits = np.where(whole, NEVER - 1, np.int64(NONE))
    # The longest events alone are too many.
    full = np.where(whole, NEVER, np.clip(budgets, 0, NEVER - 2) + 1)
    while (full - fits > 1).any():
        # All traces are bisected at once; the number of spans cannot be derived from a rank,
        # because roll-ups appear and vanish with what is kept.
        tried = fits + (full - fits) // 2
        good = _used(places, candidates & (ranks <= tried.astype(np.int32)[group]), keys) <= budgets
        fits, full = np.where(good, tried, fits), np.where(good, full, tried)
    chosen: NDArray[np.bool_] = candidates & (ranks <= fits.astype(np.int32)[group])
    return chosen


def _used(
    places: Assignment, kept: NDArray[np.bool_], keys: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return the number of spans of each trace: kept events, and a roll-up per parent and name."""
    rest = np.flatnonzero(~(kept | places.hidden))
    many, place = int(kept.sum()), np.cumsum(kept, dtype=np.int32) - 1
    above = places.forest.nearest(kept)[rest]
    width = int(keys.max(initial=0)) + 1
    cells = np.where(above == NONE, places.anchor[rest] + np.int64(many), place[above])
    size = (many + len(places.anchor_span)) * width
    del above, place
    cells *= width
    cells += keys[rest]
    # A table of marks is faster than sorting, but takes memory: at most sixteen megabytes.
    if size <= _MOST_CELLS:
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
