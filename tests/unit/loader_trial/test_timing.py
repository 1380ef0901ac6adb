"""A loader is timed as its batches arrive."""

from __future__ import annotations

import pytest

from otel_mlperf.errors import LoaderError
from otel_mlperf.loader_trial.timing import SHORTEST_NS, TURNS, time_batches, time_pass

MS = 1_000_000


class Clock:
    """A clock that goes on when a batch is made."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


class Loader:
    """Batches that take so long each, the first of a pass with a start."""

    def __init__(self, clock, length=10**6, batch_ns=100 * MS, start_ns=0, batch="ab"):
        self.clock, self.length, self.batch = clock, length, batch
        self.batch_ns = batch_ns if callable(batch_ns) else lambda _: batch_ns
        self.start_ns, self.passes, self.made = start_ns, 0, 0

    def __iter__(self):
        self.passes += 1
        self.clock.now += self.start_ns
        for _ in range(self.length):
            self.clock.now += self.batch_ns(self.made)
            self.made += 1
            yield [[0.0, 1.0]]


def test_the_first_batch_is_told_apart():
    """The start of workers is in it, and in no turn."""
    clock = Clock()
    pace = time_batches(Loader(clock, start_ns=900 * MS), 4, 3, clock)

    assert pace.first_batch_ns == 1000 * MS
    assert (pace.batches, pace.batch_ns, pace.noise) == (4 * TURNS, 100 * MS, 0.0)


def test_what_was_fetched_ahead_is_not_timed():
    """Workers had it ready: it says nothing of how fast they are."""
    clock = Clock()
    loader = Loader(clock, batch_ns=lambda made: 100 * MS if made > 6 or not made else 0)

    assert time_batches(loader, 4, 6, clock).batch_ns == 100 * MS


def test_epochs_follow_one_another():
    """What a new pass takes is part of the time."""
    clock = Clock()
    loader = Loader(clock, length=2, start_ns=100 * MS)
    pace = time_batches(loader, 4, 1, clock)

    assert loader.passes > TURNS
    assert pace.batch_ns == 150 * MS


def test_noise_leaves_out_one_turn_at_either_end():
    """One that was disturbed says nothing of the others."""
    clock, turn = Clock(), 4
    costs = [100, 120, 900, 80, 100]
    loader = Loader(clock, batch_ns=lambda made: costs[max(0, made - 1) // turn] * MS)
    pace = time_batches(loader, turn, 0, clock)

    assert (pace.batch_ns, pace.noise) == (100 * MS, 0.1)


def test_fast_batches_make_longer_turns():
    """Too short a turn would measure the clock."""
    clock = Clock()
    pace = time_batches(Loader(clock, batch_ns=MS), 4, 0, clock)

    assert pace.batches == TURNS * SHORTEST_NS // MS


def test_what_can_be_iterated_once_is_timed_as_far_as_it_goes():
    """A generator, say; one batch alone has its own time."""
    clock = Clock()
    assert time_batches(iter(Loader(clock, length=4)), 10, 0, clock).batches == 3
    alone = time_batches(iter(Loader(clock, length=1)), 10, 0, clock)
    assert (alone.batches, alone.batch_ns) == (1, 100 * MS)


def test_a_pass_is_timed_as_a_whole():
    """No more batches than it has."""
    clock = Clock()
    pace, count = time_pass(Loader(clock, length=3, start_ns=30 * MS), 10, clock)

    assert (count, pace.batch_ns) == (3, 110 * MS)


def test_errors_of_the_loader():
    """An empty one, and one whose code raises, with where it did."""
    with pytest.raises(LoaderError, match="it returned no batch"):
        time_batches([], 4, 0, Clock())

    def broken(_):
        raise ValueError("no image 3\nof many")

    loader = Loader(Clock(), batch_ns=broken)
    with pytest.raises(LoaderError, match=r"failed: ValueError: no image 3 \(test_timing.py:\d+\)"):
        time_batches(loader, 4, 0, Clock())
