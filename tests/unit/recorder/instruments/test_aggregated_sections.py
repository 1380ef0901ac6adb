"""Do aggregated sections add up exactly, and what happens when no cell is left?"""

from __future__ import annotations

import threading

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import MAX_ENTRIES


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


def test_aggregate_of_too_many_names(recording, said):
    """Names without end take no memory without end: later ones are added up as one, said once."""
    for i in range(MAX_ENTRIES + 100):
        with om.span(f"batch {i}", aggregate=True):
            pass

    assert len(recording.recorder.aggregated._names) == MAX_ENTRIES + 1
    assert len([text for text in said() if "put what varies into attributes" in text]) == 1


def test_aggregate_with_an_exception(recording):
    """An exception passes through, and the time counts."""
    with pytest.raises(KeyError), om.span("lookup", aggregate=True):
        raise KeyError("x")

    assert [cells[0][0] for cells in recording.cells().values()] == [1]


def test_aggregate_of_many_threads(recording):
    """Threads add to cells of their own; later threads go on with them."""

    def work():
        for _ in range(1000):
            with om.span("lookup", aggregate=True):
                pass

    for _ in range(5):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    cells = [
        cell for key, found in recording.cells().items() for cell in found if key[1] == "lookup"
    ]
    assert sum(cell[0] for cell in cells) == 20_000
    assert len(cells) <= 8
