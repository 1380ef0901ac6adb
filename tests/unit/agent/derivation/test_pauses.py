"""A garbage collection takes its time from the section that it occurred in, and only there."""

from __future__ import annotations

import pytest
from by_hand import MS, Program, accounts, adds_up, table

from otel_mlperf import names

PAUSE = names.SPAN_COLLECTION


def waiting_step(program: Program, *pauses: tuple[float, float], track: int = 11) -> int:
    """A step from 10 to 110 ms: it waits for data from 20 to 60, and computes from 60 to 100."""
    step = program.begin_step(10)
    for start, end in pauses:
        program.pause(start, end, track=track)
    program.section("data.load", 20, 60, parent=step, root=step, category=names.DATA_LOADING)
    program.section("forward", 60, 100, parent=step, root=step, category=names.FORWARD)
    program.end_step(step, 10, 110)
    return step


def self_ms(run_folder) -> dict[str, float]:
    """Self time by name of the one step's rows that add up to it, and of the step itself."""
    (step,) = table(run_folder, "steps")
    rows = [row for row in table(run_folder, "sections") if row["n"] is not None]
    own = {row["name"]: row["self_ns"] / MS for row in rows if not row["beside"]}
    assert sum(own.values()) + step["self_ns"] / MS == step["duration_ns"] / MS == 100
    return own | {"train.step": step["self_ns"] / MS}


def ended(program: Program, agent_of) -> None:
    program.stop(200)
    agent_of(program).run()


def test_pause_is_named_in_the_section_that_it_fell_into(program, agent_of, run_folder) -> None:
    """The row says for how long and in what, the section around it has only the rest."""
    waiting_step(program, (22, 59))
    ended(program, agent_of)

    assert self_ms(run_folder) == {"data.load": 3, "forward": 40, PAUSE: 37, "train.step": 20}
    (row,) = [row for row in table(run_folder, "sections") if row["name"] == PAUSE]
    assert (row["parent"], row["count"], row["beside"]) == ("data.load", 1, False)
    assert row["category"] == names.GARBAGE_COLLECTION


def test_pause_is_a_span_inside_the_section(program, agent_of, run_folder) -> None:
    """In the step's trace, with the times that were measured, and every item has its fate."""
    step = waiting_step(program, (22, 59))
    ended(program, agent_of)

    spans = {span["name"]: span for span in table(run_folder, "spans")}
    assert spans[PAUSE]["parent_id"] == spans["data.load"]["span_id"]
    assert spans[PAUSE]["trace_id"] == spans["train.step"]["trace_id"]
    assert int(spans[PAUSE]["root_id"], 16) == step
    assert (spans[PAUSE]["end_ns"] - spans[PAUSE]["start_ns"]) / MS == 37
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert adds_up(account)


@pytest.mark.parametrize(
    ("pause", "place"),
    [
        ((20, 30), "data.load"),  # while it is being entered
        ((60, 70), "forward"),
        ((12, 19), "train.step"),
        ((10, 20), "train.step"),  # when it was asked for, and before its clock was read
        ((101, 110), "train.step"),
    ],
)
def test_pause_while_a_section_is_entered_or_left_counts_once(
    program, agent_of, run_folder, pause, place
) -> None:
    """It belongs to the innermost one that holds all of it; self times still add up."""
    waiting_step(program, pause)
    ended(program, agent_of)

    assert self_ms(run_folder)["train.step"] <= 20
    (row,) = [row for row in table(run_folder, "sections") if row["name"] == PAUSE]
    assert row["parent"] == place


@pytest.mark.parametrize("pause", [(2, 9), (5, 10), (110, 112), (111, 150)])
def test_pause_between_steps_is_outside(program, agent_of, run_folder, pause) -> None:
    """Also where the step was just being opened or ended: it is nothing of the step."""
    waiting_step(program, pause)
    ended(program, agent_of)

    assert self_ms(run_folder) == {"data.load": 40, "forward": 40, "train.step": 20}
    (row,) = [row for row in table(run_folder, "sections") if row["name"] == PAUSE]
    assert (row["n"], row["path"]) == (None, PAUSE)
    assert row["self_ns"] == (pause[1] - pause[0]) * MS


def test_pause_of_another_thread_is_beside_the_step(program, agent_of, run_folder) -> None:
    """A thread that loads ahead collects: named in the step, and taken from nothing in it."""
    waiting_step(program, (22, 59), track=99)
    ended(program, agent_of)

    assert self_ms(run_folder) == {"data.load": 40, "forward": 40, "train.step": 20}
    (row,) = [row for row in table(run_folder, "sections") if row["name"] == PAUSE]
    assert (row["beside"], row["self_ns"] / MS, row["n"]) == (True, 37, 0)


def test_several_pauses_are_told_by_their_sections(program, agent_of, run_folder) -> None:
    """Those of one section together, those of another by themselves."""
    waiting_step(program, (22, 32), (33, 39), (62, 65))
    ended(program, agent_of)

    rows = [row for row in table(run_folder, "sections") if row["name"] == PAUSE]
    assert {(row["parent"], row["count"], row["self_ns"] / MS) for row in rows} == {
        ("data.load", 2, 16),
        ("forward", 1, 3),
    }


def test_pause_is_placed_before_the_section_around_it_has_ended(
    program, agent_of, run_folder
) -> None:
    """A wait of minutes: the agent reads the pause while the section is still open."""
    agent = agent_of(program)
    step = program.begin_step(10)
    wait = program.open("data.load", 20, parent=step, root=step)
    program.pause(22, 59)
    agent.tick()
    agent.mark()
    program.section("data.load", 20, 60, parent=step, root=step, span=wait)
    program.section("forward", 60, 100, parent=step, root=step, category=names.FORWARD)
    program.end_step(step, 10, 110)
    program.stop(200)
    agent.run()

    assert self_ms(run_folder)["data.load"] == 3
    assert self_ms(run_folder)[PAUSE] == 37


def test_what_finalizers_record_is_a_part_of_the_pause(program, agent_of, run_folder) -> None:
    """They run in the middle of it, and open their sections in what it fell into."""
    step = program.begin_step(10)
    program.section("close", 30, 40, parent=step, root=step)
    program.pause(22, 59)
    program.end_step(step, 10, 110)
    ended(program, agent_of)

    assert self_ms(run_folder) == {"close": 10, PAUSE: 27, "train.step": 63}


def test_pause_outside_steps_is_below_what_was_open(program, agent_of, run_folder) -> None:
    """In an epoch, a validation, the set-up: a section of the run's trace."""
    program.pause(22, 59)
    program.section("load_model", 20, 60)
    ended(program, agent_of)

    rows = {row["path"]: row["self_ns"] / MS for row in table(run_folder, "sections")}
    assert rows[f"load_model/{PAUSE}"] == 37
    assert rows["load_model"] == 3
