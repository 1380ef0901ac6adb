"""Quantiles of histograms are as exact as promised, alone and merged."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.otlp.histogram import ExponentialBuckets, error_ratio, merged, quantile

DURATIONS = st.lists(st.floats(1e-9, 1e6) | st.just(0.0), min_size=1, max_size=80)


def recorded(values):
    buckets = ExponentialBuckets()
    buckets.record(np.array(values))
    return buckets


@given(st.lists(DURATIONS, min_size=1, max_size=5))
def test_parts_together_are_the_histogram_of_all(parts):
    """Whatever their scales are, nothing is lost that one histogram of all values would know."""
    whole = recorded([value for part in parts for value in part])
    together = merged(map(recorded, parts))

    assert together.sum == pytest.approx(whole.sum)
    assert (together.count, together.zero_count) == (whole.count, whole.zero_count)
    assert (together.min, together.max) == (whole.min, whole.max)
    if whole.counts:
        assert (together.scale, together.offset) == (whole.scale, whole.offset)
        assert together.counts == whole.counts


@given(DURATIONS, st.floats(0.001, 1.0))
def test_quantile_is_the_exact_one_within_the_error_that_is_said(values, share):
    """The value that so many are not above, off by no more than a bucket is wide."""
    buckets = recorded(values)
    exact = sorted(values)[math.ceil(share * len(values)) - 1]

    assert quantile(buckets, share) == pytest.approx(exact, rel=error_ratio(buckets) + 1e-9)


def test_buckets_without_a_value_change_no_others():
    """A histogram of zeros alone may have buckets, far from those of the others and coarser."""
    known = recorded([1e6, 1.001e6, 1.5e6])
    empty = ExponentialBuckets(count=1, zero_count=1, scale=known.scale, offset=0, counts=[0])

    both = merged([known, empty])
    assert (both.scale, both.offset, both.counts) == (known.scale, known.offset, known.counts)
    assert (both.count, both.zero_count) == (4, 1)
    assert merged([empty]).counts == []


def test_160_buckets_tell_a_range_of_a_thousand_to_within_5_percent():
    """From a millisecond to a second each bucket ends 4.5 % above its begin."""
    assert error_ratio(recorded([0.001, 1.0])) == pytest.approx(0.0443, abs=1e-4)


def test_of_nothing_there_is_no_quantile():
    """An empty histogram says nothing."""
    assert quantile(ExponentialBuckets(), 0.5) is None
