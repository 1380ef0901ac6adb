"""Of several candidates with one key: the last that began no later."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.kineto.linking.arrows import last_before


def matched(candidates, wanted):
    """The indices found; both are lists of key and time."""
    keys = np.array([key for key, _ in candidates], np.int64)
    times = np.array([time for _, time in candidates], np.int64)
    wanted_keys = np.array([key for key, _ in wanted], np.int64)
    wanted_times = np.array([time for _, time in wanted], np.int64)
    return last_before(keys, times, wanted_keys, wanted_times).tolist()


def test_last_candidate_before_is_meant() -> None:
    """An id that is used again belongs to what came before, not to its first use."""
    assert matched([(7, 10), (7, 20), (8, 5)], [(7, 15), (7, 20), (7, 99), (9, 99)]) == [
        0,
        1,
        1,
        -1,
    ]


def test_first_candidate_is_meant_where_all_come_later() -> None:
    """Clocks of host and device differ; the kernel that seems to be early has its launch."""
    assert matched([(7, 30), (7, 20)], [(7, 19)]) == [1]


_PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=16)


@given(_PAIRS, _PAIRS)
def test_matches_are_those_of_a_search(candidates, wanted) -> None:
    """On random keys and times; of candidates at one time the later in the file."""

    def search(key, time):
        there = [(at, index) for index, (k, at) in enumerate(candidates) if k == key]
        before = [one for one in there if one[0] <= time]
        if before:
            return max(before)[1]
        return min(there, key=lambda one: one[0])[1] if there else -1

    assert matched(candidates, wanted) == [search(*one) for one in wanted]
