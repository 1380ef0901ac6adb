"""Merged sums of values are those of all values together."""

from __future__ import annotations

from functools import reduce
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from otel_mlperf.value_sums import ValueSums

VALUES = st.lists(st.integers(0, 10**9), max_size=8)


def sums_of(values):
    """The sums of one group."""
    if not values:
        return ValueSums(0, 0, 0, 0, 0.0)
    spread = float(pvariance(values) * len(values))
    return ValueSums(len(values), sum(values), min(values), max(values), spread)


@given(st.lists(VALUES, min_size=1, max_size=6).filter(any))
def test_groups_merge_to_the_sums_of_all_their_values(groups):
    """Whatever their sizes, empty ones among them: all but the spread to the last digit."""
    found = reduce(ValueSums.merged, map(sums_of, groups))
    values = [value for group in groups for value in group]

    whole = sums_of(values)
    assert replace(found, spread=0.0) == replace(whole, spread=0.0)
    assert found.mean == fmean(values)
    assert found.variance == pytest.approx(pvariance(values), rel=1e-9, abs=1e-2)


def test_small_differences_of_large_values_are_not_lost():
    """The variance of nanoseconds around a second, merged one by one."""
    values = [10**9 + more for more in (0, 1, 2, 3)]

    found = reduce(ValueSums.merged, (sums_of([value]) for value in values))

    assert found.variance == pytest.approx(pvariance(values))
