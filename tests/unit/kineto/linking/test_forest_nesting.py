"""Which event is around which: intervals of every shape against a search of all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.kineto.linking.forest import find_parents


def parents(*intervals, tracks=None, ranks=None):
    """The parents of intervals given as start and duration."""
    count = len(intervals)
    columns = np.array(intervals, np.int64).reshape(count, 2)
    track = np.array(tracks or [0] * count, np.int32)
    rank = np.array(ranks or [0] * count, np.int64)
    return find_parents(track, columns[:, 0], columns[:, 1], rank).tolist()


def test_innermost_event_around_another_is_its_parent() -> None:
    """Of all that contain an event it is the smallest, however the rows are ordered."""
    assert parents((20, 10), (0, 100), (10, 50), (70, 20)) == [2, -1, 1, 1]


def test_what_outlasts_another_is_not_its_child() -> None:
    """Of two that overlap none is the other's parent; both are children of what contains both."""
    assert parents((0, 100), (10, 40), (30, 50), (35, 5)) == [-1, 0, 0, 2]


def test_neighbours_that_touch_are_neighbours() -> None:
    """An event that begins where another ends is not inside it."""
    assert parents((0, 10), (10, 10), (20, 0)) == [-1, -1, -1]


def test_event_without_duration_belongs_to_what_is_open() -> None:
    """At a start it is inside, at an end it is not; two at one time are neighbours."""
    assert parents((0, 10), (0, 0), (5, 0), (5, 0), (10, 0)) == [-1, 0, 0, 0, -1]


@pytest.mark.fault("F89")
def test_negative_duration_counts_as_none() -> None:
    """It contains nothing, and belongs to what is open where it begins."""
    assert parents((0, 10), (5, -4), (5, 2)) == [-1, 2, 0]


def test_of_equal_intervals_the_lower_rank_is_outside() -> None:
    """By rank, then by row."""
    assert parents((0, 9), (0, 9), (0, 9), ranks=[2, 1, 1]) == [2, -1, 1]


def test_tracks_do_not_mix() -> None:
    """What surrounds an event on another thread is nothing to it."""
    assert parents((0, 100), (10, 10), (0, 50), tracks=[0, 1, 1]) == [-1, 2, -1]


def test_nothing_nests_in_nothing() -> None:
    """A trace without host events has no parents."""
    assert parents() == []


def test_a_hundred_thousand_levels_are_found_in_one_pass() -> None:
    """The depth of a file costs neither a stack nor a search."""
    depth = 100_000
    assert parents(*((at, 2 * (depth - at)) for at in range(depth))) == list(range(-1, depth - 1))


_INTERVALS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(-2, 12), st.integers(0, 2)),
    max_size=24,
)


@given(_INTERVALS)
def test_parents_are_those_of_a_search_of_all_pairs(rows) -> None:
    """On random intervals, many of them equal, touching, empty or crossing."""
    found = parents(
        *((start, duration) for _, start, duration, _ in rows),
        tracks=[row[0] for row in rows],
        ranks=[row[3] for row in rows],
    )

    assert found == [_searched(rows, row) for row in range(len(rows))]


def _searched(rows, row):
    around = [other for other in range(len(rows)) if other != row and _contains(rows, other, row)]
    return max(around, key=lambda other: _order(rows, other), default=-1)


def _contains(rows, outer, inner):
    """Whether it is on the same track, begins first, has not ended there, and ends last."""
    (track, start, duration, _), (other_track, begin, spent, _) = rows[outer], rows[inner]
    end, stop = start + max(duration, 0), begin + max(spent, 0)
    return (
        track == other_track
        and _order(rows, outer) < _order(rows, inner)
        and begin < end
        and stop <= end
    )


def _order(rows, row):
    _, start, duration, rank = rows[row]
    return start, -(start + max(duration, 0)), rank, row
