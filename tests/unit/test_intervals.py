"""The time that intervals cover, share and leave out is exact."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.intervals import CoveredTime, gaps, inner_ns, nearest_rank, shared, sums, union

PIECES = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(0, 3)), max_size=25)
GROUPS = 4


def united(pieces):
    """The union of (start, length, group)."""
    columns = np.array(pieces, np.int64).reshape(-1, 3).T
    return union(columns[0], columns[0] + columns[1], columns[2])


def instants(pieces, group):
    """The unit-long instants that pieces of a group cover: the slow way."""
    return {t for start, length, of in pieces if of == group for t in range(start, start + length)}


@given(PIECES)
def test_a_union_covers_each_instant_once(pieces):
    """The length of a union is the number of instants covered, in every group."""
    found = united(pieces)

    expected = [len(instants(pieces, group)) for group in range(GROUPS)]
    assert sums(found.length_ns, found.group, GROUPS).tolist() == expected


@given(PIECES)
def test_what_is_united_neither_overlaps_nor_touches(pieces):
    """Intervals of a group are apart, in order, and name the piece that opens them."""
    found = united(pieces)
    same = found.group[1:] == found.group[:-1]

    assert (found.start_ns[1:] > found.end_ns[:-1])[same].all()
    assert (np.diff(found.group) >= 0).all()
    opened = [pieces[at] for at in found.first]
    assert [(start, group) for start, _, group in opened] == list(
        zip(found.start_ns.tolist(), found.group.tolist(), strict=True)
    )


@given(PIECES)
def test_union_and_gaps_are_all_the_time_between(pieces):
    """What is covered and what is not add up to the time from first to last."""
    found = united(pieces)
    between = gaps(found)

    for group in range(GROUPS):
        mine, free = found.group == group, between.group == group
        whole = found.length_ns[mine].sum() + between.length_ns[free].sum()
        ends = found.end_ns[mine].max(initial=0) - found.start_ns[mine].min(initial=2**60)
        assert whole == (ends if mine.any() else 0)
        assert (between.length_ns[free] > 0).all()


@given(PIECES, PIECES, PIECES)
def test_time_is_shared_out_by_who_was_on(first, second, third):
    """Each combination of three sets has the instants in which these, and no others, run."""
    sets = (first, second, third)
    found = shared([united(pieces) for pieces in sets], GROUPS)

    for group in range(GROUPS):
        on = [instants(pieces, group) for pieces in sets]
        for mask in range(1, 8):
            inside = set.intersection(*(on[bit] for bit in range(3) if mask >> bit & 1))
            outside = set().union(*(on[bit] for bit in range(3) if not mask >> bit & 1))
            assert found[group, mask] == len(inside - outside)


def test_nothing_covers_nothing():
    """No interval at all is no time, and no gap."""
    none = united([])

    assert (len(none), len(gaps(none))) == (0, 0)
    assert shared([none, none], 2).tolist() == [[0] * 4] * 2


def test_large_times_stay_exact():
    """Unix nanoseconds, in which a float would be wrong by hundreds, are exact."""
    start = 1_712_195_495_505_582_988
    found = union(
        np.array([start, start + 3, start + 1_000_001]),
        np.array([start + 5, start + 8, start + 1_000_002]),
        np.zeros(3, np.int64),
    )

    assert found.length_ns.tolist() == [8, 1]
    assert gaps(found).length_ns.tolist() == [999_993]


def test_an_interval_that_ends_before_it_starts_covers_nothing():
    """A negative duration takes no time away from others."""
    found = union(np.array([10, 4]), np.array([3, 6]), np.zeros(2, np.int64))

    assert found.length_ns.sum() == 2


@given(PIECES)
def test_intervals_one_by_one_cover_what_they_do_together(pieces):
    """A running cover, fed in the order of starts, holds the length of the union."""
    found = united(pieces)

    for group in range(GROUPS):
        cover = CoveredTime()
        for start, length, _ in sorted(piece for piece in pieces if piece[2] == group):
            cover.add(start, start + length)
        assert cover.covered_ns == found.length_ns[found.group == group].sum()


@given(PIECES, st.data())
def test_what_is_inside_is_told_alike_by_columns_and_one_by_one(pieces, data):
    """Of any tree of intervals, however they overlap and stick out."""
    start, length, _ = np.array(pieces, np.int64).reshape(-1, 3).T
    end = start + length
    rows = range(len(pieces))
    around = np.array([data.draw(st.integers(-1, row - 1)) for row in rows], np.int64)
    covers = [CoveredTime(int(start[row])) for row in rows]
    for row in np.argsort(start, kind="stable").tolist():
        if around[row] >= 0:
            above = around[row]
            covers[above].add(int(start[row]), int(min(end[row], end[above])))

    assert inner_ns(start, end, around).tolist() == [cover.covered_ns for cover in covers]


@given(st.lists(st.integers(), min_size=1), st.integers(1, 100))
def test_a_quantile_is_the_smallest_value_that_enough_do_not_exceed(values, percent):
    """By nearest rank: of a count, and of a column of counts alike."""
    values.sort()
    at = nearest_rank(len(values), percent)

    enough = [v for v in values if sum(w <= v for w in values) * 100 >= percent * len(values)]
    assert values[at] == enough[0]
    assert nearest_rank(np.array([len(values)], np.int64), percent).tolist() == [at]
