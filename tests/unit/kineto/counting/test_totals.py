"""Counts, sums, extremes and quantiles of groups are exact."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.kineto.counting.totals import nearest_rank, totals

EVENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**60 // 100)), max_size=60)


@given(EVENTS)
def test_totals_are_those_of_sorted_lists(events):
    """Each group has the figures that plain Python finds in a list of its durations."""
    group, duration = np.array(events, np.int64).reshape(-1, 2).T
    found = dict(totals(group, duration, duration // 2))

    assert set(found) == {of for of, _ in events}
    for key, figures in found.items():
        mine = sorted(length for of, length in events if of == key)
        assert figures["count"] == len(mine)
        assert figures["total_ns"] == sum(mine)
        assert figures["self_ns"] == sum(length // 2 for length in mine)
        assert (figures["min_ns"], figures["max_ns"]) == (mine[0], mine[-1])
        assert figures["p50_ns"] == mine[math.ceil(len(mine) / 2) - 1]
        assert figures["p95_ns"] == mine[math.ceil(len(mine) * 19 / 20) - 1]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=50), st.sampled_from([50, 95]))
def test_a_quantile_is_the_smallest_that_enough_do_not_exceed(values, percent):
    """At least p percent are at most the quantile, and fewer are below it."""
    values = sorted(values)
    quantile = values[nearest_rank(np.array(len(values)), percent)]

    assert sum(value <= quantile for value in values) * 100 >= percent * len(values)
    assert sum(value < quantile for value in values) * 100 < percent * len(values)


def test_sums_beyond_what_a_float_holds_are_exact():
    """One nanosecond beside three months is not lost."""
    duration = np.array([2**53, 1, 1, 1])
    figures = dict(totals(np.zeros(4, np.int64), duration, duration))[0]

    assert figures["total_ns"] == 2**53 + 3
