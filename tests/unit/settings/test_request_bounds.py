"""The bound of requests is parsed in each way in which a setting is given."""

from __future__ import annotations

import pytest

from otel_mlperf.errors import ConfigError
from otel_mlperf.settings.config import Config
from otel_mlperf.settings.setting_values import bound_of, parse_bounds


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("", ""),
        ("0.05", "0.05"),
        (2, "2"),
        (" predict = 0.05, chat*=2 ,", "predict=0.05,chat*=2"),
        ({"predict": 0.05, "*": "1"}, "predict=0.05,1"),
    ],
)
def test_all_ways_become_one_text(given, text):
    """As the next process gets it by the environment; it stays the same there."""
    assert Config(request_within_s=given).request_within_s == text
    assert Config(request_within_s=text).request_within_s == text


@pytest.mark.parametrize("given", ["soon", "0", "-1", "predict=", "inf", True, {"a": None}, [1, 2]])
def test_what_is_no_time_is_refused(given):
    """With what was given and what is expected."""
    with pytest.raises(ConfigError, match=r"request_within_s: found .* expected seconds"):
        Config(request_within_s=given)


def test_the_first_that_fits_counts():
    """A time alone is of all; where nothing fits there is none."""
    bounds = parse_bounds("chat.short=0.1,chat*=2")

    assert [bound_of(bounds, name) for name in ("chat.short", "chat.long", "predict")] == [
        0.1, 2.0, None,
    ]  # fmt: skip
    assert bound_of(parse_bounds("0.5"), "predict") == 0.5
