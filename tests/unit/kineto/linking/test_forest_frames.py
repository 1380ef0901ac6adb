"""Frames of Python beside other events: who is above whom, whatever end a frame was given."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.kineto.linking.forest import Forest, find_parents

NONE = -1


def parents(*intervals, frames):
    """The parents of intervals given as start and duration; ``frames`` are the indices of those."""
    columns = np.array(intervals, np.int64).reshape(len(intervals), 2)
    is_frame = np.isin(np.arange(len(intervals)), frames)
    track, rank = np.zeros(len(intervals), np.int32), np.zeros(len(intervals), np.int64)
    return find_parents(track, columns[:, 0], columns[:, 1], rank, is_frame).tolist()


def test_frames_and_events_nest_in_one_another() -> None:
    """An operator in a frame in an operator, where all of them end as they should."""
    assert parents((0, 100), (10, 80), (20, 60), (30, 40), frames=[1, 3]) == [NONE, 0, 1, 2]


def test_frame_that_outlives_its_caller_ends_with_it() -> None:
    """What follows the caller is not in the frame, though the file says that it goes on."""
    caller, lost, inner, after = (0, 100), (10, 990), (20, 10), (200, 10)

    assert parents(caller, lost, inner, after, frames=[0, 1]) == [NONE, 0, 1, NONE]


def test_frame_that_outlives_an_operator_takes_nothing_from_it() -> None:
    """What runs in the operator is the operator's; afterwards the frame is there again."""
    outer, lost, inner, after = (0, 100), (10, 990), (20, 10), (200, 10)

    assert parents(outer, lost, inner, after, frames=[1]) == [NONE, NONE, 0, 1]


def test_frame_inside_one_that_outlives_an_operator_stays_in_the_operator() -> None:
    """Or what it calls would hang under the frame above it, and no more under the operator."""
    outer, lost, frame, call = (0, 100), (10, 990), (20, 40), (30, 10)

    assert parents(outer, lost, frame, call, frames=[1, 2]) == [NONE, NONE, 0, 2]


def test_annotation_that_two_frames_open_and_close_is_in_neither() -> None:
    """As ``with record_function`` is written: it begins in one call and ends in another."""
    caller, enter, annotation = (0, 200), (10, 10), (15, 80)
    leave, last = (90, 10), (96, 2)

    found = parents(caller, enter, annotation, leave, last, frames=[0, 1, 3])

    assert found == [NONE, 0, 0, 0, 3]


_ROWS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 12), st.integers(-2, 12), st.integers(0, 2)),
    max_size=24,
)


@given(_ROWS)
def test_frames_change_nothing_between_other_events(rows) -> None:
    """The nearest event above another is the one that is there without any frames."""
    frame, start, duration, rank = np.array(rows, np.int64).reshape(-1, 4).T
    track, is_frame = np.zeros(len(rows), np.int32), frame.astype(bool)
    found = find_parents(track, start, duration, rank, is_frame)
    others = np.flatnonzero(~is_frame)

    alone = find_parents(track[others], start[others], duration[others], rank[others])

    assert Forest(found).nearest(~is_frame)[others].tolist() == [
        int(others[at]) if at != NONE else NONE for at in alone
    ]


@given(_ROWS)
def test_without_frames_that_outlive_anything_all_nest_by_time_alone(rows) -> None:
    """Frames that end with or before what they begin in are events like any other."""
    frame, start, duration, rank = np.array(rows, np.int64).reshape(-1, 4).T
    track, end = np.zeros(len(rows), np.int32), start + np.maximum(duration, 0)
    crosses = [
        any(start[at] < start[row] < end[at] < end[row] for at in range(len(rows)))
        or any(start[row] < start[at] < end[row] < end[at] for at in range(len(rows)))
        for row in range(len(rows))
    ]
    is_frame = frame.astype(bool) & ~np.array(crosses, bool)

    found = find_parents(track, start, duration, rank, is_frame)

    assert found.tolist() == find_parents(track, start, duration, rank).tolist()


def test_a_hundred_thousand_frames_in_frames_take_one_pass() -> None:
    """Nor does it cost a search for each, when operators outlive all that are open."""
    depth = 100_000
    frames = [(at, 2 * (depth - at)) for at in range(depth)]
    operators = [(depth + at, 3 * depth) for at in range(100)]

    found = parents(*frames, *operators, frames=range(depth))

    assert found[:depth] == list(range(-1, depth - 1))
    assert found[depth:] == [NONE] * 100
