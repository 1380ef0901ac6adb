"""Queries about parents give the same answers as a walk from event to event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.kineto.linking.forest import Forest
from otel_mlperf.kineto.trace_events import NONE


@st.composite
def parents(draw):
    """Trees of rows in any order."""
    count = draw(st.integers(0, 30))
    order = draw(st.permutations(range(count)))
    parent = np.full(count, NONE, np.int32)
    for place in range(1, count):
        above = draw(st.integers(-1, place - 1))
        parent[order[place]] = NONE if above < 0 else order[above]
    return parent


def way_up(parent, row):
    """The rows above one, nearest first."""
    found = []
    while parent[row] != NONE:
        row = int(parent[row])
        found.append(row)
    return found


@given(parent=parents(), data=st.data())
def test_answers_are_those_of_a_walk(parent, data):
    """Depth, root, nearest wanted row, sums and smallest values agree with walking up and down."""
    rows = range(len(parent))
    wanted = np.array([data.draw(st.booleans()) for _ in rows], bool)
    values = np.array([data.draw(st.integers(-9, 9)) for _ in rows], np.int64)
    forest = Forest(parent)
    above = [way_up(parent, row) for row in rows]
    inside = [[one for one in rows if one == row or row in above[one]] for row in rows]

    assert forest.depth().tolist() == [len(found) for found in above]
    assert forest.roots().tolist() == [[row, *above[row]][-1] for row in rows]
    nearest = [next((one for one in found if wanted[one]), NONE) for found in above]
    assert forest.nearest(wanted).tolist() == nearest
    assert forest.sums(values).tolist() == [sum(values[found]) for found in inside]
    assert forest.smallest(values).tolist() == [min(values[found]) for found in inside]
    assert forest.smallest_above(values).tolist() == [
        min(values[[row, *above[row]]]) for row in rows
    ]


@given(parent=parents())
def test_levels_hold_each_row_once_below_its_parent(parent):
    """Roots come first, and each row stands one level below its parent."""
    levels = Forest(parent).levels

    place = {row: level for level, rows in enumerate(levels) for row in rows.tolist()}
    assert sorted(place) == list(range(len(parent)))
    for row, level in place.items():
        assert level == (0 if parent[row] == NONE else place[int(parent[row])] + 1)


@pytest.mark.parametrize("depth", [1, 1000, 5000])
def test_depth_has_no_limit(depth):
    """A chain of thousands of rows is walked as well."""
    forest = Forest(np.arange(-1, depth - 1, dtype=np.int32))

    assert forest.depth()[-1] == depth - 1
    assert set(forest.roots().tolist()) == {0}
