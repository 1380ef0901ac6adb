"""Senders spread out after a failure, and come back soon."""

from __future__ import annotations

import random

import pytest

from otel_mlperf.otlp.http_client import Backoff


@pytest.mark.fault("F01", "F04")
def test_waits_grow_from_one_second_to_five():
    """Without luck the waits are 1, 1.5, 2.25, 3.375 and then 5 seconds."""
    backoff = Backoff(chance=lambda: 1.0)

    assert [backoff.failed() for _ in range(6)] == pytest.approx([1, 1.5, 2.25, 3.375, 5, 5])


def test_a_success_ends_the_waiting():
    """The failure after it is the first again."""
    backoff = Backoff(chance=lambda: 1.0)
    for _ in range(3):
        backoff.failed()
    backoff.succeeded()

    assert backoff.failed() == 1.0


@pytest.mark.fault("F04")
def test_what_the_server_asks_for_is_the_least():
    """A Retry-After is never undercut, and chance comes on top of it."""
    backoff = Backoff(chance=random.Random(1).random)

    waits = [backoff.failed(30.0) for _ in range(50)]

    assert min(waits) >= 30.0
    assert max(waits) - min(waits) > 1.0


@pytest.mark.fault("F04")
def test_fifty_senders_do_not_come_back_together():
    """After a restart of the collector, first tries spread over half the interval and more."""
    waits = [Backoff(chance=random.Random(seed).random).failed() for seed in range(50)]

    assert max(waits) - min(waits) > 0.5
    assert 0.4 <= min(waits) <= max(waits) <= 1.0
    assert len({Backoff().failed() for _ in range(10)}) == 10
