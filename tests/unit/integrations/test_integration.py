"""What an integration passes to a framework is harmless."""

from __future__ import annotations

import signal

import pytest

from otel_mlperf.integrations import harmless
from otel_mlperf.recorder.core import faults


@harmless
def divide(number: float, by: float) -> float:
    return number / by


@pytest.fixture
def counted(monkeypatch):
    """How many errors the recorder counted."""
    count: list[int] = []
    monkeypatch.setattr(faults._Faults, "count", lambda: count.append(1))
    monkeypatch.setattr(faults, "_said", set())
    return count


def test_failure_ends_where_it_began(counted, caplog):
    """It gives None, is counted each time and said once, with the function's name."""
    assert divide(1, 2) == 0.5
    assert [divide(1, 0), divide(2, by=0)] == [None, None]

    assert len(counted) == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert "divide failed: ZeroDivisionError: division by zero; the program continues" in said


@pytest.mark.fault("F95")
def test_exception_of_the_program_goes_on(counted):
    """A time limit that a signal handler raises meanwhile is the program's own."""

    def limit(number, frame):
        raise TimeoutError("too long")

    before = signal.signal(signal.SIGUSR1, limit)
    try:
        with pytest.raises(TimeoutError, match="too long"):
            harmless(signal.raise_signal)(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert counted == []
