"""Sections outside steps are derived correctly, from journal to tables."""

from __future__ import annotations

import pytest
from by_hand import MS, Program, accounts, adds_up, aggregate, table


def test_sections_outside_steps_are_measured_by_path(program, agent_of, run_folder) -> None:
    """A tree without steps comes out as paths with self and total; the rest is counted."""
    for i in range(20):
        outer = 1000 + i
        program.section("read", i * 10 + 1, i * 10 + 4, parent=outer)
        program.section("prepare", i * 10, i * 10 + 8, span=outer)
    program.stop(300)
    agent_of(program).run()

    rows = {r["path"]: r for r in table(run_folder, "sections")}
    assert rows["prepare"]["count"] == rows["prepare/read"]["count"] == 20
    assert rows["prepare"]["self_ns"] == 20 * 5_000_000
    assert rows["prepare/read"]["sum_ns"] == 20 * 3_000_000
    spans = table(run_folder, "spans")
    ids = {s["span_id"] for s in spans}
    assert all(s["parent_id"] in ids for s in spans if s["parent_id"])
    assert adds_up(accounts(run_folder)["spans"]["store"])


def test_interrupted_sections_are_spans_once(program, agent_of, run_folder) -> None:
    """Sections open at a death arrive marked; one whose row was already written does not."""
    step = program.begin_step(0)
    program.open("train.step", 0, root=step, span=step)
    program.open("forward", 1, parent=step, root=step)
    done = program.section("backward", 2, 3, parent=step, root=step)
    program.open("backward", 2, parent=step, root=step, span=done)
    program.open("run", 0, span=program.run)
    program.journal.close()
    agent_of(program).run()

    spans = table(run_folder, "spans")
    assert sorted((s["name"], s["interrupted"]) for s in spans) == [
        ("backward", False),
        ("forward", True),
        ("run", True),
        ("train.step", True),
    ]
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == 4
    assert adds_up(account)
    assert table(run_folder, "steps") == []
    assert table(run_folder, "processes")[-1]["outcome"] == "killed"


@pytest.mark.fault("F56")
def test_deep_recursion_is_measured_and_costs_nothing_else(program, agent_of, run_folder) -> None:
    """Three thousand sections inside each other are counted, each with the last one's path."""
    depth = 3000
    spans = [5000 + i for i in range(depth)]
    for i in reversed(range(depth)):
        parent = spans[i - 1] if i else program.run
        program.section("visit", i, 2 * depth - i, span=spans[i], parent=parent)
    program.stop(2 * depth + 1)
    agent_of(program).run()

    rows = [r for r in table(run_folder, "sections") if r["name"] == "visit"]
    assert sum(r["count"] for r in rows) == depth
    assert max(len(r["path"].split("/")) for r in rows) == 32
    account = accounts(run_folder)["spans"]["store"]
    assert account["lost"] == {}
    assert adds_up(account)


def test_steps_of_a_forked_child_are_no_steps_of_its_rank(
    program, journals, agent_of, run_folder
) -> None:
    """They are sections of the run: the rank's steps keep their figures and their traces."""
    child = Program(journals, run_folder, name="0-2-1", is_child=True)
    for i in range(8):
        program.step(i * 10)
        child.step(i * 10 + 1, 2.0)
    child.journal.close()
    program.stop(100)
    agent_of(program, child).run()
    child.journal.release()

    assert [s["n"] for s in table(run_folder, "steps")] == list(range(8))
    inside = {r["path"]: r["count"] for r in table(run_folder, "sections") if r["n"] is None}
    assert inside == {"train.step": 8, "train.step/data.load": 8, "train.step/forward": 8, "": 1}
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections + child.sections
    assert adds_up(account)


def test_sections_below_the_run_are_beside_if_the_steps_run_elsewhere(
    program, agent_of, run_folder
) -> None:
    """The loop may be a task of its own; a thread that began before it is no part of it."""
    program.step(0)
    program.section("on the loop", 11, 12)
    program.section("before it", 13, 14, track=99, parent=0)
    program.stop(20)
    agent_of(program).run()

    rows = table(run_folder, "sections")
    beside = {r["name"]: r["beside"] for r in rows if r["n"] is None}
    assert beside == {"run": False, "on the loop": False, "before it": True}


def test_sections_of_forked_children_are_beside_their_ranks_own(
    program, journals, agent_of, run_folder
) -> None:
    """Whatever is inside what there, and what they only add up too."""
    child = Program(journals, run_folder, name="0-2-1", is_child=True)
    program.section("load", 1, 9)
    outer = child.section("load", 2, 8)
    child.section("read", 3, 4, parent=outer)
    number = child.journal.entry(aggregate("decode", "load", section=child.name("load")))
    word = child.journal.cell(number)
    child.journal.words[word + 1], child.journal.words[word + 2] = 3, 300
    child.journal.close()
    program.stop(100)
    agent_of(program, child).run()
    child.journal.release()

    rows = {(r["name"], r["beside"]): r["sum_ns"] for r in table(run_folder, "sections")}
    assert rows == {
        ("run", False): 100 * MS, ("load", False): 8 * MS, ("load", True): 6 * MS,
        ("read", True): MS, ("decode", True): 300,
    }  # fmt: skip
