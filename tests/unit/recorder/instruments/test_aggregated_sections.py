"""Aggregated sections sum exactly, also if has no room for more series."""

from __future__ import annotations

import threading

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import MAX_ENTRIES, Word


def test_aggregate(recording):
    """Aggregated sections leave no row: count, sum, shortest and longest add up."""
    with om.span("outer"):
        for _ in range(100):
            with om.span("lookup", aggregate=True):
                pass

    ((key, ((count, total_ns, least, most, *_),)),) = recording.cells().items()
    assert key[:5] == ("aggregate", "lookup", names.OTHER, "outer", "train")
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

    found = {key[3:5]: cells[0][0] for key, cells in recording.cells().items()}
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

    assert len(recording.recorder.aggregated.known) == MAX_ENTRIES + 1
    assert len([text for text in said() if "use attributes for parts of a name" in text]) == 1


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


def test_aggregate_inside_another_knows_its_encloser(recording):
    """Each place has a cell of its own, and what is inside is covered in the one around."""
    with om.span("forward"):
        for _ in range(3):
            with om.span("outer", aggregate=True):
                with om.span("inner", aggregate=True):
                    pass
                with om.span("recorded"):
                    pass

    cells = {key[1]: (key[3], key[7], found[0]) for key, found in recording.cells().items()}
    enclosing, inside, inner = cells["inner"]
    assert (enclosing, inside, inner[0]) == ("outer", "outer", 3)
    assert cells["outer"][:2] == ("forward", "")
    recorded = sum(row.end - row.start for row in recording.sections("recorded"))
    assert cells["outer"][2][4] == inner[1] + recorded


def test_aggregate_calling_itself_takes_one_cell(recording):
    """However deep: the calls count, and the time is that of the outermost."""

    def visit(depth):
        with om.span("visit", aggregate=True):
            if depth:
                visit(depth - 1)

    visit(100)

    ((_, ((count, total_ns, _, most, covered_ns, *_),)),) = recording.cells().items()
    assert count == 101
    assert total_ns == most
    assert covered_ns == 0


def test_aggregate_without_a_cell_is_counted_and_leaves_its_time(start, said):
    """It is said once, and what is around keeps the time: nothing is taken away from it."""
    recording = start(journal_rows=2048)
    with om.span("first"):
        pass
    for i in range(400):
        with om.span(f"batch {i}", aggregate=True):
            pass
    with om.span("outer", aggregate=True), om.span("first"):
        pass

    assert recording.word(Word.LOST_CELLS) > 0
    assert len([text for text in said() if "has no room for more series" in text]) == 1
    assert recording.sections("first")[1].parent == recording.span
    assert not any(key[1] == "outer" for key in recording.cells())
