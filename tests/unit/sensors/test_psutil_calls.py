"""Failures of psutil become absent readings, logged once."""

from __future__ import annotations

import logging
import time

import psutil
import pytest

from otel_mlperf.sensors.psutil_calls import read_psutil, uptime_s


def test_a_function_that_this_system_lacks_is_logged_once(caplog):
    """As sensors of temperature on macOS: nothing is read, and nothing raises."""
    with caplog.at_level(logging.INFO, "otel_mlperf.sensors"):
        assert [read_psutil("no_such_function") for _ in range(3)] == [None] * 3

    (record,) = caplog.records
    assert record.getMessage().startswith("psutil.no_such_function failed: AttributeError(")


def test_a_file_that_is_missing_gives_nothing(tmp_path, monkeypatch):
    """And the same function answers again once the file is there."""
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
        assert read_psutil("cpu_times", percpu=True) is None

    assert len(read_psutil("cpu_times", percpu=True)) == psutil.cpu_count()


def test_uptime_counts_from_the_boot_that_psutil_knows():
    """Psutil has whole seconds, by a clock that may be set."""
    psutils_s = time.time() - psutil.boot_time()

    assert uptime_s() == pytest.approx(psutils_s, abs=5)
