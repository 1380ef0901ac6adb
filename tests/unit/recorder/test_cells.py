"""Do counters, gauges and aggregated sections add up exactly?"""

from __future__ import annotations

import signal
import struct
import threading

import numpy as np
import pytest
import torch

import otel_mlperf as om
from otel_mlperf import names


def number(word):
    """A cell's word as the float that it holds."""
    return struct.unpack("<d", word.to_bytes(8, "little"))[0]


def total(recording, *key):
    return sum(number(cell[0]) for cell in recording.cells()[key])


def test_counter(recording):
    """What is added is summed up, one by default."""
    tokens = om.counter("tokens", "{token}")
    tokens.add(100)
    tokens.add()
    tokens.add(np.float32(0.5))

    assert total(recording, "counter", "tokens", "{token}") == 101.5


def test_counter_from_before_start(start):
    """A counter made before the run counts in each run for itself."""
    tokens = om.counter("tokens")
    tokens.add(5)
    first = start()
    tokens.add(1)
    om.stop()
    second = start()
    tokens.add(2)

    assert total(first, "counter", "tokens", "") == 1
    assert total(second, "counter", "tokens", "") == 2


def test_counter_of_many_threads(recording):
    """Threads add to cells of their own, whose sum is exact; later threads go on with them."""
    tokens = om.counter("tokens")

    def work():
        for _ in range(1000):
            tokens.add(1)

    for _ in range(5):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    cells = recording.cells()["counter", "tokens", ""]
    assert sum(number(cell[0]) for cell in cells) == 20_000
    assert sum(cell[1] for cell in cells) == 20_000
    assert len(cells) <= 8


def test_counter_in_signal_handlers(recording):
    """Adding in a signal handler that interrupts adding loses nothing."""
    tokens = om.counter("tokens")
    handled = 0

    def handle(number, frame):
        nonlocal handled
        handled += 1
        tokens.add(1)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        count = 0
        while handled < 200:
            tokens.add(1)
            count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert total(recording, "counter", "tokens", "") == count + handled


@pytest.mark.parametrize("value", [-1, "x", None, float("nan"), torch.tensor(1.0)])
def test_what_cannot_be_added(recording, value):
    """A negative value, no number, or a tensor is left out, without harm."""
    om.counter("tokens").add(value)

    assert recording.cells() == {}


def test_gauge(recording):
    """A gauge has one cell, the last value wins, whoever sets it."""
    depth = om.gauge("queue.depth")
    depth.set(3)
    thread = threading.Thread(target=depth.set, args=(-1.5,))
    thread.start()
    thread.join()

    ((value, updates, *_),) = recording.cells()["gauge", "queue.depth", ""]
    assert (number(value), updates) == (-1.5, 2)


def test_aggregate(recording):
    """Aggregated sections leave no row: count, sum, shortest and longest add up."""
    with om.span("outer"):
        for _ in range(100):
            with om.span("lookup", aggregate=True):
                pass

    ((count, total_ns, least, most, *_),) = recording.cells()[
        "aggregate", "lookup", names.OTHER, "outer", "train"
    ]
    assert recording.sections("lookup") == []
    assert count == 100
    assert 0 < least <= total_ns // 100 <= most <= total_ns
    assert total_ns <= recording.one("outer").end - recording.one("outer").start


def test_aggregate_by_enclosing_and_phase(recording):
    """Each enclosing section and phase has a sum of its own."""

    @om.span("lookup", aggregate=True, category="io")
    def lookup():
        return 7

    with om.span("a"):
        assert lookup() == 7
    with om.phase("test"), om.span("a"):
        lookup()
        lookup()
    lookup()

    found = {key[3:]: cells[0][0] for key, cells in recording.cells().items()}
    assert found == {("a", "train"): 1, ("a", "test"): 2, ("run", "train"): 1}


def test_aggregate_does_not_become_a_parent(recording):
    """A section inside an aggregated one is the child of what encloses both."""
    with om.span("outer"), om.span("lookup", aggregate=True), om.span("inner"):
        pass

    assert recording.one("inner").parent == recording.one("outer").span


def test_aggregate_with_an_exception(recording):
    """An exception passes through, and the time counts."""
    with pytest.raises(KeyError), om.span("lookup", aggregate=True):
        raise KeyError("x")

    assert [cells[0][0] for cells in recording.cells().values()] == [1]


def test_cells_run_out(recording):
    """When no cell is left, adding is counted as lost and harms nothing."""
    for i in range(recording.journal.shape.cells + 10):
        om.counter(f"c{i}").add(1)

    assert len(recording.cells()) == recording.journal.shape.cells


@pytest.mark.parametrize("make", [om.counter, om.gauge])
@pytest.mark.parametrize("name", ["", None])
def test_without_a_name(recording, said, make, name):
    """A counter or gauge without a name is said, and counted all the same."""
    made = make(name)
    (made.add if make is om.counter else made.set)(1)

    assert [key[1] for key in recording.cells()] == ["unnamed"]
    assert len(said()) == 1
    assert f"{make.__name__}(): a name is expected" in said()[0]
