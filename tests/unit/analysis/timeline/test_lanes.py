"""Slices on one line always nest, and only where they belong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.analysis.timeline.timeline_tracks import Lanes

SLICES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 10), st.integers(0, 12)), max_size=12
)
"""Begin, duration, and which of those before is the parent."""


def lanes_of(*slices):
    """The line of each (begin, end, span, parent)."""
    lanes = Lanes()
    return [lanes.place(*one).lane for one in slices]


def test_children_lie_on_the_line_of_their_parent():
    """At any depth, and where they end with it."""
    assert lanes_of((0, 10, 1, 0), (0, 5, 2, 1), (1, 5, 3, 2), (5, 10, 4, 1)) == [0, 0, 0, 0]


def test_what_follows_takes_the_same_line():
    """Also without a pause, and without an id."""
    assert lanes_of((0, 10, 0, 0), (10, 20, 0, 0), (25, 30, 0, 0)) == [0, 0, 0]


def test_siblings_that_overlap_are_apart():
    """Even if one holds the other: it is not its child."""
    assert lanes_of((0, 20, 1, 0), (1, 10, 2, 1), (2, 8, 3, 1), (9, 15, 4, 1)) == [0, 0, 1, 1]


def test_a_child_that_outlives_its_parent_is_apart():
    """With its own children on its line."""
    assert lanes_of((0, 10, 1, 0), (5, 15, 2, 1), (6, 9, 3, 2), (8, 9, 4, 1)) == [0, 1, 1, 0]


def test_what_has_no_parent_here_nests_by_time():
    """As operators in an annotation that nobody linked."""
    assert lanes_of((0, 10, 1, 0), (2, 8, 2, 99), (3, 9, 3, 98)) == [0, 0, 1]


def test_a_child_of_no_length_may_lie_at_the_end_of_its_parent():
    """It is inside, not after it."""
    lanes = Lanes()
    lanes.place(0, 10, 1, 0)

    assert lanes.place(10, 10, 2, 1) == (0, [])
    assert lanes.close() == [(0, 10), (0, 10)]


@given(slices=SLICES)
def test_begins_and_ends_of_a_line_form_a_tree(slices):
    """Whatever comes: what is told of each line is balanced, in the order of time, and complete."""
    lanes, lines = Lanes(), {}
    given_slices = sorted((start, -(start + length), parent) for start, length, parent in slices)
    for span, (start, minus_end, parent) in enumerate(given_slices, 1):
        placed = lanes.place(start, -minus_end, span, parent if parent < span else 0)
        for lane, end in placed.ended:
            lines[lane].append(("end", end))
        lines.setdefault(placed.lane, []).append(("begin", start, -minus_end))
    for lane, end in lanes.close():
        lines[lane].append(("end", end))

    assert sum(one[0] == "begin" for told in lines.values() for one in told) == len(slices)
    for told in lines.values():
        open_ends = []
        for kind, time, *end in told:
            if kind == "begin":
                assert all(time <= until and end[0] <= until for until in open_ends)
                open_ends.append(end[0])
            else:
                assert time == open_ends.pop()
        assert open_ends == []
        times = [one[1] for one in told]
        assert times == sorted(times)
