"""The growth between two totals, whatever their resolution."""

from __future__ import annotations

from otel_mlperf.otlp.deltas import SentTotal, growth


def test_growth_of_a_histogram_is_in_the_buckets_of_the_later_total() -> None:
    """Earlier buckets may be finer: four of them are one of the later ones."""
    before = SentTotal(
        time_ns=1, value=5.0, count=6, zeros=1, scale=2, offset=4, counts=[1, 2, 0, 1, 1]
    )
    now = SentTotal(time_ns=2, value=9.0, count=10, zeros=2, scale=0, offset=0, counts=[1, 5, 2])

    assert growth(now, before) == SentTotal(
        time_ns=2, value=4.0, count=4, zeros=1, scale=0, offset=0, counts=[1, 1, 1]
    )
    assert now.counts == [1, 5, 2]


def test_growth_of_a_sum_is_the_difference() -> None:
    """An earlier total of zero, as after a restart, leaves the later one."""
    assert growth(SentTotal(value=7.0), SentTotal(value=3.0)).value == 4.0
    assert growth(SentTotal(value=7.0), SentTotal()).value == 7.0
