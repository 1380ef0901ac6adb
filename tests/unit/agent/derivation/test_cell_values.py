"""Cells of a journal become series and rows."""

from __future__ import annotations

import math

import pytest
from by_hand import Program, accounts, aggregate, table

from otel_mlperf.journal.layout import HistogramCell


def test_aggregated_sections_are_totals_and_no_items(program, agent_of, run_folder) -> None:
    """Cells of several threads add up to one row under the enclosing name."""
    number = program.journal.entry(
        aggregate("tokenize", "data.load", section=program.name("data.load"), path="data.load")
    )
    for count, total, least, most in ((10, 500, 20, 90), (5, 100, 10, 40)):
        word = program.journal.cell(number)
        program.journal.words[word + 1] = count
        program.journal.words[word + 2] = total
        program.journal.words[word + 3] = least
        program.journal.words[word + 4] = most
    program.stop(10)
    agent_of(program).run()

    (row,) = [r for r in table(run_folder, "sections") if r["aggregate"]]
    found = {key: row[key] for key in ("name", "parent", "count", "sum_ns", "min_ns", "max_ns")}
    assert found == {
        "name": "tokenize", "parent": "data.load", "count": 15, "sum_ns": 600, "min_ns": 10,
        "max_ns": 90,
    }  # fmt: skip
    assert accounts(run_folder)["spans"]["store"]["created"] == program.sections


def test_cells_are_series_under_their_own_names(program, agent_of) -> None:
    """What the recorder and the program count is published as it is called in the journal."""
    for name, kind in (("ml.training.steps.expected", "gauge"), ("ml.user.tokens", "counter")):
        word = program.journal.cell(program.journal.entry(["cell", kind, name, "", []]))
        program.journal.floats[word + 1] = 7.0
        program.journal.words[word + 2] = 1
    agent = agent_of(program)
    agent.tick()
    agent.mark()

    (rank,) = agent._state.ranks.values()
    values = {series.metric: series.value for series in rank.series.values()}
    assert values["ml.training.steps.expected"] == values["ml.user.tokens"] == 7.0


def test_what_the_program_counted_is_in_the_run_folder(program, agent_of, run_folder) -> None:
    """A counter's last total is a reading, with no server anywhere."""
    word = program.journal.cell(
        program.journal.entry(["cell", "counter", "ml.user.tokens", "", []])
    )
    program.journal.floats[word + 1] = 360.0
    program.journal.words[word + 2] = 1
    program.stop(10)
    agent_of(program).run()

    readings = [r for r in table(run_folder, "readings") if r["name"] == "ml.user.tokens"]
    assert readings[-1]["value"] == 360.0


def test_stored_total_of_a_counter_is_the_ranks(program, journals, agent_of, run_folder) -> None:
    """What a forked child counted is in it: no reading holds what one process counted alone."""
    child = Program(journals, run_folder, name="0-2-1", is_child=True)
    for one, value in ((program, 300.0), (child, 60.0)):
        word = one.journal.cell(one.journal.entry(["cell", "counter", "ml.user.tokens", "", []]))
        one.journal.floats[word + 1] = value
        one.journal.words[word + 2] = 1
    child.journal.close()
    program.stop(10)
    agent_of(program, child).run()
    child.journal.release()

    stored = [r["value"] for r in table(run_folder, "readings") if r["name"] == "ml.user.tokens"]
    assert stored == [360.0]


WILD = (1 << 64) - 1


@pytest.mark.fault("F94")
@pytest.mark.parametrize(
    ("kind", "at"),
    [("counter", 1), ("gauge", 1), ("histogram", 1), ("histogram", 2), ("histogram", 7)],
)
def test_cell_that_was_written_over_is_left_out_and_counted(program, agent_of, kind, at) -> None:
    """No process counts to what it says; the other series are as they were."""
    hit, other = (
        program.journal.cell(program.journal.entry(["cell", kind, name, "", []]))
        for name in ("ml.user.hit", "ml.user.other")
    )
    for word in (hit, other):
        program.journal.floats[word + 1] = 7.0
        program.journal.words[word + 7] = HistogramCell.HEAD
        program.journal.words[word + 2] = 3
    program.journal.floats[hit + at] = math.inf
    if at > 1:
        program.journal.words[hit + at] = WILD
    agent = agent_of(program)
    agent.tick()
    agent.mark()

    (rank,) = agent._state.ranks.values()
    series = {series.metric: series for series in rank.series.values()}
    assert "ml.user.hit" not in series
    assert "ml.user.other" in series
    assert series["otel_mlperf.journal.lost"].value == 1


def test_aggregate_goes_on_from_what_is_left_of_it(program, agent_of, run_folder) -> None:
    """One thread's cell that was written over takes nothing from what the others add later."""
    number = program.journal.entry(aggregate("tokenize", "run", path="run"))
    hit, whole = (program.journal.cell(number) for _ in range(2))

    def add(word: int, calls: int) -> None:
        for at, more in ((1, calls), (2, calls * 50)):
            program.journal.words[word + at] += more

    agent = agent_of(program)
    add(hit, 10), add(whole, 4)
    agent.tick(), agent.mark()
    program.journal.words[hit + 2] = WILD
    agent.mark()
    add(whole, 6)
    program.stop(10)
    agent.run()

    rows = [row for row in table(run_folder, "sections") if row["aggregate"]]
    assert sum(row["count"] for row in rows) == 20
    assert sum(row["sum_ns"] for row in rows) == 1000
