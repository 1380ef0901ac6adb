"""Histograms put every value where OpenTelemetry's own aggregation puts it."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    View,
)

from otel_mlperf.otlp.histogram import (
    DEFAULT_BOUNDS,
    MAX_BUCKETS,
    Buckets,
    ExplicitBuckets,
    ExponentialBuckets,
)

SECONDS = (
    st.floats(1e-9, 1e6)
    | st.integers(-30, 20).map(lambda power: 2.0**power)
    | st.sampled_from([0.0, 0.001, 0.256, 5e-324, 1e300])
)
VALUES = st.lists(SECONDS, min_size=1, max_size=60)
KINDS = st.sampled_from([ExponentialBuckets, ExplicitBuckets])


def sdk_point(values, aggregation):
    """The point that the SDK makes of the same values."""
    reader = InMemoryMetricReader()
    view = View(instrument_name="h", aggregation=aggregation)
    provider = MeterProvider([reader], views=[view], shutdown_on_exit=False)
    histogram = provider.get_meter("peer").create_histogram("h")
    for value in values:
        histogram.record(value)
    data = reader.get_metrics_data()
    provider.shutdown()
    return data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points[0]


def recorded(kind: type[Buckets], *parts: list[float]) -> Buckets:
    """A histogram of the given arrays."""
    buckets = kind()
    for part in parts:
        buckets.record(np.array(part))
    return buckets


def filled(offset: int, counts: list[int]) -> dict[int, int]:
    """Index to count of the buckets that hold something."""
    return {place: count for place, count in enumerate(counts, offset) if count}


@given(VALUES)
def test_exponential_buckets_are_those_of_the_sdk(values):
    """Scale, buckets, zero count and totals equal the SDK's for any durations in any order."""
    ours = recorded(ExponentialBuckets, values)
    theirs = sdk_point(values, ExponentialBucketHistogramAggregation())

    assert (ours.count, ours.zero_count) == (theirs.count, theirs.zero_count)
    assert (ours.min, ours.max) == (theirs.min, theirs.max)
    assert ours.sum == pytest.approx(theirs.sum)
    if ours.counts:
        positive = theirs.positive
        assert ours.scale == theirs.scale
        assert filled(ours.offset, ours.counts) == filled(positive.offset, positive.bucket_counts)


@given(VALUES)
def test_explicit_buckets_are_those_of_the_sdk(values):
    """With the standard variable, values fall into the bounds as in the SDK."""
    ours = recorded(ExplicitBuckets, values)
    theirs = sdk_point(values, ExplicitBucketHistogramAggregation(DEFAULT_BOUNDS))

    assert tuple(ours.counts) == tuple(theirs.bucket_counts)
    assert (ours.count, ours.min, ours.max) == (theirs.count, theirs.min, theirs.max)


@given(KINDS, VALUES, VALUES)
def test_batches_give_what_one_batch_gives(kind, first, second):
    """It does not matter how values were split into arrays."""
    once = recorded(kind, first + second)
    twice = recorded(kind, first, second)

    assert twice.sum == pytest.approx(once.sum)
    twice.sum = once.sum
    assert once == twice


@given(VALUES)
def test_every_value_lies_in_its_bucket(values):
    """The bounds that the scale states enclose what was counted between them."""
    for value in values:
        buckets = recorded(ExponentialBuckets, [value])
        if value < 1e-300:
            continue
        low = buckets.offset / 2**buckets.scale
        exact = math.log2(value)
        assert low - 1e-12 <= exact <= low + 2**-buckets.scale + 1e-12


@given(VALUES)
def test_buckets_are_at_most_160_and_no_finer_than_scale_20(values):
    """However far apart durations are, a point stays small."""
    buckets = recorded(ExponentialBuckets, values)

    assert len(buckets.counts) <= MAX_BUCKETS
    assert buckets.scale <= 20
    assert sum(buckets.counts) + buckets.zero_count == buckets.count == len(values)


@given(KINDS, VALUES, VALUES)
def test_a_snapshot_goes_on_where_it_was_taken(kind, before, after):
    """An agent that was killed counts on from its snapshot as if nothing had happened."""
    buckets = recorded(kind, before)
    restored = msgspec.msgpack.decode(msgspec.msgpack.encode(buckets), type=Buckets)
    assert restored == buckets

    for one in (buckets, restored):
        one.record(np.array(after))

    assert restored == buckets


@pytest.mark.parametrize("kind", [ExponentialBuckets, ExplicitBuckets])
def test_a_new_histogram_is_a_zero_point(kind):
    """Before its first value a series can be sent as zero, so that rate() sees the first step."""
    buckets = kind()
    buckets.record(np.array([]))
    point = buckets.point({"ml.phase": "train"}, 1, 2)

    assert (point.count, point.sum, point.min, point.max) == (0, 0.0, None, None)
    assert sum(point.counts) == 0


@pytest.mark.fault("F53")
@pytest.mark.parametrize("kind", [ExponentialBuckets, ExplicitBuckets])
def test_broken_durations_spoil_nothing(kind):
    """A negative duration counts as zero; one that is no number is left out."""
    buckets = recorded(kind, [-1.0, math.nan, math.inf, 0.5])

    assert (buckets.count, buckets.sum, buckets.min, buckets.max) == (2, 0.5, 0.0, 0.5)
