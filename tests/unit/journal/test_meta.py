"""Tests of ``journal.meta``."""

import pytest

from otel_mlperf.journal.meta import JournalMeta


def meta(monotonic_ns, unix_ns):
    return JournalMeta(
        run_id="r",
        run_name="r",
        run_folder="/r",
        service="s",
        host="h",
        pid=1,
        run_span=2,
        monotonic_ns=monotonic_ns,
        unix_ns=unix_ns,
    )


@pytest.mark.fault("F30")
def test_row_times_become_unix_times_by_the_anchor():
    """A row's time has the distance from the start that it has on the monotonic clock."""
    known = meta(1_000, 1_700_000_000_000_000_000)

    assert known.shift_ns == 1_699_999_999_999_999_000
    assert known.unix_time(1_250) == 1_700_000_000_000_000_250
    assert known.unix_time(400) == 1_699_999_999_999_999_400


@pytest.mark.fault("F30")
def test_no_unix_time_is_negative():
    """A clock that stood in 1970 gives the beginning of time, which the wire can hold."""
    assert meta(5_000, 10).unix_time(1_000) == 0
