"""Numbers are written short and true."""

from __future__ import annotations

import pytest

from otel_mlperf.quantities import (
    column_unit,
    duration,
    percent,
    plural,
    rate,
    signed,
)


@pytest.mark.parametrize(
    ("ns", "written"),
    [
        (0, "0 s"),
        (1, "1.00 ns"),
        (412, "412 ns"),
        (999.6, "1.00 µs"),
        (48_100, "48.1 µs"),
        (999_400, "999 µs"),
        (999_600, "1.00 ms"),
        (48_100_000, "48.1 ms"),
        (412e6, "412 ms"),
        (1.92e9, "1.92 s"),
        (19.2e9, "19.2 s"),
        (59.94e9, "59.9 s"),
        (59.96e9, "1 m 00 s"),
        (171e9, "2 m 51 s"),
        (3_600e9, "1 h 00 m"),
        (93_784e9, "1 d 2 h"),
    ],
)
def test_a_duration_has_three_figures_and_the_unit_that_suits_it(ns, written):
    """Also just below and above the change of a unit."""
    assert duration(ns) == written


@pytest.mark.parametrize(
    ("mean", "written"),
    [(48.1e6, "48.1"), (4.81e6, "4.81"), (481e3, "481.0"), (4.81e3, "4.81"), (48.1e9, "48.10")],
)
def test_a_column_has_the_decimals_that_its_mean_needs(mean, written):
    """Milliseconds where they can be read."""
    assert column_unit(mean).number(mean) == written


@pytest.mark.parametrize(
    ("share", "written"),
    [
        (0.0, "0 %"),
        (0.0001, "<1 %"),
        (0.0099, "<1 %"),
        (0.01, "1 %"),
        (0.314, "31 %"),
        (1, "100 %"),
    ],
)
def test_a_share_that_is_something_is_not_written_as_nothing(share, written):
    """Whole percents."""
    assert percent(share) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.25, "0.25"), (48.12, "48.1"), (999.4, "999"), (1332.8, "1,330"), (1_234_567, "1,230,000")],
)
def test_a_rate_has_three_figures(value, written):
    """More would pretend."""
    assert rate(value) == written


def test_one_is_singular():
    """1 rank, 2 ranks, 3,120 steps."""
    assert [plural(1, "rank"), plural(2, "rank"), plural(3120, "step")] == [
        "1 rank",
        "2 ranks",
        "3,120 steps",
    ]


@pytest.mark.parametrize(
    ("ratio", "written"),
    [
        (0.031, "+3.1"),
        (-0.12, "-12"),
        (0.0, "+0.0"),
        (-0.0004, "+0.0"),
        (-0.0006, "-0.1"),
        (12.5, "+1,250"),
    ],
)
def test_what_rounds_to_nothing_has_no_minus(ratio, written):
    """A difference of none has no direction."""
    assert signed(ratio) == written
