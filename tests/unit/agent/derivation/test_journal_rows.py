"""A process's values, outcome and underivable rows are reported."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import MS, accounts, adds_up, table

from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.journal.layout import EPOCH, FIRST_PROGRAM_MARK, Kind, Word


def test_outcome_of_the_run_is_written(program, agent_of, run_folder) -> None:
    """A failed run says which error ended it, in which step and section."""
    step = program.begin_step(0)
    words = {"e": ["RuntimeError", "out of memory", ""]}
    program.section("forward", 1, 2, parent=step, root=step, error=True, payload=words)
    program.end_step(step, 0, 3, error=True, payload=words)
    program.stop(4, error=True, payload=words)
    agent_of(program).run()

    last = table(run_folder, "processes")[-1]
    assert (last["outcome"], last["error_type"]) == ("failed", "RuntimeError")
    assert (last["error_step"], last["error_section"]) == (100, "forward")


def test_overhead_is_that_of_the_sections_and_of_watching(program, agent_of, run_folder) -> None:
    """Each section costs what was measured at the start; how long watching took is counted."""
    program.step(0)
    program.journal.count(Word.WATCH_TIME, 5 * MS)
    program.stop(20)
    agent_of(program).run()

    last = table(run_folder, "processes")[-1]
    assert last["overhead_ns"] == last["sections"] * program.meta.cost_ns + 5 * MS


def test_logged_values_are_rows(program, agent_of, run_folder) -> None:
    """Each call of log() is a row with the step's number, the time and the exact value."""
    bits = int(np.float64(0.25).view(np.uint64))
    program.journal.put(7 * MS, bits, 0, 103, program.run, 11, program.name("loss"), Kind.VALUE)
    program.stop(10)
    agent_of(program).run()

    (row,) = table(run_folder, "values")
    assert (row["name"], row["number"], row["value"]) == ("loss", 103, 0.25)
    assert row["time_ns"] == 1_700_000_000_007_000_000


@pytest.mark.fault("F94")
def test_contents_that_none_can_have_cost_no_row(program, agent_of, run_folder) -> None:
    """A section without its attributes, or its name, is still a section."""
    program.step(0)
    program.journal.payload(999, ["not", "a", "map"])
    program.section("odd", 11, 12, span=999)
    program._entries["bad", "train"] = program.journal.entry(["section", "bad"])
    program.section("bad", 12, 13)
    program.stop(20)
    agent_of(program).run()

    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert account["lost"] == {}
    assert [row["name"] for row in table(run_folder, "spans")][-3:] == ["odd", "other", "run"]


class Impossible(Policy):
    """What keeps an agent from working out any row."""

    def spans_of_rank(self, world_size: int) -> int:
        raise ArithmeticError(world_size)


def test_rows_that_cannot_be_worked_out_are_counted(program, agent_of, run_folder) -> None:
    """They are given up: the next agent would meet them too."""
    program.step(0)
    program.stop(20)
    agent_of(program, policy=Impossible()).run()

    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert account["lost"] == {"internal": program.sections}
    assert adds_up(account)


def test_run_whose_own_row_found_no_room_has_finished(program, agent_of, run_folder) -> None:
    """A journal that was closed is no killed process, even if its last row was dropped."""
    program.step(0)
    program.journal.close()
    agent_of(program).run()

    assert table(run_folder, "processes")[-1]["outcome"] == "finished"


def test_marks_of_the_program_are_rows(program, agent_of, run_folder) -> None:
    """Each is a row with name, phase, step and time; those of the package itself are none."""
    name = program.name("lr halved", phase="validate")
    program.journal.put(7 * MS, 0, FIRST_PROGRAM_MARK, 103, 0, 0, name, Kind.MARK)
    program.journal.put(8 * MS, 0, EPOCH, 0, 0, 0, 0, Kind.MARK)
    program.journal.put(9 * MS, 0, FIRST_PROGRAM_MARK + 1, 0, 0, 0, 0, Kind.MARK)
    program.stop(10)
    agent_of(program).run()

    (row,) = table(run_folder, "marks")
    assert row == {
        "rank": 0, "restart": 0, "phase": "validate", "name": "lr halved", "number": 103,
        "time_ns": 1_700_000_000_007_000_000,
    }  # fmt: skip
