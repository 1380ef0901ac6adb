"""Which interval of a thread is innermost: at a time, and with a tolerance."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.kineto.linking.threads import Innermost


def cover(*intervals, rows=None):
    """A cover of intervals given as start and end."""
    columns = np.array(intervals, np.int64).reshape(-1, 2)
    return Innermost(columns[:, 0], columns[:, 1], rows)


def at(there, *times):
    """The innermost at each time."""
    return there.at(np.array(times, np.int64)).tolist()


def around(there, start, end, tolerance):
    """The innermost around one event."""
    (found,) = there.around(np.array([start]), np.array([end]), tolerance).tolist()
    return found


def test_last_begun_is_innermost() -> None:
    """From its start until before its end; then what is around it."""
    there = cover((0, 100), (10, 20), (15, 18))

    assert at(there, -1, 0, 10, 15, 17, 18, 20, 99, 100) == [-1, 0, 1, 2, 2, 1, 0, 0, -1]


def test_of_those_that_begin_together_the_shorter_is_innermost() -> None:
    """A step and its first section may begin in one tick of the clock."""
    assert at(cover((0, 5), (0, 100)), 2, 50) == [0, 1]


def test_only_the_chosen_intervals_count() -> None:
    """The answer is still an index into the whole columns."""
    assert at(cover((0, 9), (2, 5), (3, 4), rows=np.array([0, 2])), 2, 3) == [0, 2]


def test_event_that_begins_a_little_early_is_inside() -> None:
    """Within the tolerance, where most of it is inside."""
    assert around(cover((0, 100), (50, 80)), 48, 60, tolerance=3) == 1


def test_event_that_begins_too_early_is_outside() -> None:
    """Beyond the tolerance the clocks are believed."""
    assert around(cover((0, 100), (50, 80)), 46, 60, tolerance=3) == 0


def test_event_that_has_ended_by_then_is_outside() -> None:
    """Short events before a section are not drawn into it."""
    assert around(cover((0, 100), (50, 80)), 48, 50, tolerance=3) == 0
    assert around(cover((0, 100), (50, 80)), 48, 52, tolerance=3) == 0


def test_tolerance_reaches_the_innermost_of_several() -> None:
    """A section that opens within the tolerance of the one around it."""
    assert around(cover((10, 90), (11, 80)), 9, 30, tolerance=3) == 1


_INTERVALS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 9)).map(lambda one: (one[0], sum(one))),
    max_size=8,
)


@given(_INTERVALS)
def test_answers_are_those_of_a_search(intervals) -> None:
    """On random intervals, crossing ones too: the last begun, then the first to end."""

    def search(time):
        open_ = [(s, -e, i) for i, (s, e) in enumerate(intervals) if s <= time < e]
        return max(open_)[2] if open_ else -1

    assert at(cover(*intervals), *range(-1, 23)) == [search(time) for time in range(-1, 23)]
