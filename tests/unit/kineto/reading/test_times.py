"""Times are exact, however the file writes them."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.kineto.reading.times import NO_TIME, parse_times, why_no_time


def parsed(*values):
    return parse_times(lambda: values, len(values)).tolist()


def by_decimal(text):
    with localcontext() as context:
        context.prec = 100
        return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1712195495521948.319", 1712195495521948319),  # no float holds it
        ("9223372036854775.807", 2**63 - 1),
        ("-1.5", -1500),
        ("1.12e3", 1_120_000),
        ("7", 7000),
        ("7.", 7000),
        (".5", 500),
        ("0.0005", 0),
        ("0.0015", 2),
        ("4.000500001", 4001),
        ("123456.7890123456789", 123456789),
        (9007199254740993, 9007199254740993000),
        (-3, -3000),
    ],
)
def test_every_form_of_a_time_is_exact(written, expected):
    """Whole, decimal and exponent forms, negative ones and ties become the nanoseconds they say."""
    assert parsed(written) == [expected]
    assert parsed("1.5", written) == [1500, expected]


@pytest.mark.fault("F86")
@pytest.mark.parametrize(
    ("written", "kind"),
    [
        (None, "missing_field"),
        ("NaN", "not_a_number"),
        ("-Infinity", "not_a_number"),
        ("1e400", "out_of_range"),
        ("9223372036854775.808", "out_of_range"),
        ("9223372036854775.8079", "out_of_range"),
        ("9999999999999999", "out_of_range"),
        ("-9999999999999999.5", "out_of_range"),
        (2**63, "out_of_range"),
        (2**62, "out_of_range"),
        (-(2**63), "out_of_range"),
        ("9" * 5000, "number_too_long"),
        ("soon", "wrong_type"),
        ("", "wrong_type"),
        ("1.2.3", "wrong_type"),
        ("--1", "wrong_type"),
        ("1\n2", "wrong_type"),
        ("1.000\n2.000", "wrong_type"),
        ("1-2.000", "wrong_type"),
        ("1.0-2", "wrong_type"),
        (["1"], "wrong_type"),
    ],
)
def test_what_is_no_time_is_told_apart_from_zero(written, kind):
    """A value that is no time is NO_TIME, its neighbours are read, and its kind is named."""
    assert parsed("1.5", written, 2) == [1500, NO_TIME, 2000]
    assert parsed(written) == [NO_TIME]
    assert why_no_time(written) == kind


@pytest.mark.fault("F89")
@given(
    st.lists(
        st.decimals(
            min_value=Decimal(-(10**15)), max_value=Decimal(10**15), allow_nan=False, places=None
        ).map(str)
        | st.decimals(min_value=Decimal(0), max_value=Decimal(10**15) - 1, places=3).map(str)
        | st.integers(-(2**63) // 1000 + 1, 2**63 // 1000 - 1).map(str),
        max_size=20,
    )
)
def test_any_decimal_equals_decimal_arithmetic(texts):
    """Whatever number the text writes, its nanoseconds are those of exact arithmetic."""
    short = [text for text in texts if len(text) <= 64]

    assert parsed(*short) == [by_decimal(text) for text in short]


@given(st.lists(st.integers(-(2**53), 2**53) | st.floats(0, 1e15).map("{:.3f}".format)))
def test_numbers_and_texts_mix(values):
    """A column of whole numbers and decimal texts is read as both say."""
    assert parsed(*values) == [by_decimal(str(value)) for value in values]


@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1)))
def test_three_decimals_are_exact_up_to_the_largest_time(times):
    """Times as Kineto writes them come back as they were, from the smallest to the largest."""
    texts = [f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03}" for ns in times]

    assert parsed(*texts) == times
