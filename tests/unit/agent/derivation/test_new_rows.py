"""The end of a run is the same for every reader and at any time."""

from __future__ import annotations

import random

import pytest
from by_hand import MS, TRACK, Program, accounts, adds_up, agent_folder, table

from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.store.table_reader import Store

BEGAN = 1_700_000_000_000_000_000


def logged(program: Program) -> None:
    """A value given to ``log()`` at 73 ms."""
    row = (0, 0, 0, program.run, 11, program.name("loss"))
    program.journal.put(73 * MS, *row, Kind.VALUE)


def header(word: Word, at_ms: int):
    """A time in the journal's header."""

    def store(program: Program) -> None:
        program.journal.words[word] = at_ms * MS

    return store


def ends(run_folder) -> tuple[str, float]:
    """Outcome of the one process, and when it ended in ms after its begin."""
    ((outcome, end),) = Store(run_folder).rows("SELECT outcome, end_ns FROM processes")
    return outcome, (end - BEGAN) / MS


def read_when_dead(program: Program, journals) -> None:
    """Its process is gone, and with it the lock; an agent comes much later."""
    program.journal.release()
    Agent(
        agent_folder(program.meta), Tail(journals), Options(policy=Policy(), sources=frozenset())
    ).run()


@pytest.mark.parametrize(
    ("sign", "end_ms"),
    [
        (lambda program: None, 20),
        (lambda program: program.section("save", 30, 71), 71),
        (lambda program: program.open("save", 72), 72),
        (logged, 73),
        (header(Word.STEP_TIME, 74), 74),
        (header(Word.BEAT, 75), 75),
    ],
    ids=["step", "section", "open section", "value", "begin of a step", "look of an agent"],
)
def test_killed_process_ended_with_its_last_sign_of_life(
    journals, run_folder, sign, end_ms
) -> None:
    """Not when somebody found it dead, be that a minute or a day later."""
    program = Program(journals, run_folder)
    program.open("run", 0, span=program.run)
    program.step(10)
    sign(program)
    read_when_dead(program, journals)

    assert ends(run_folder) == ("killed", end_ms)
    spans = Store(run_folder).rows("SELECT max(end_ns) FROM spans WHERE interrupted")
    assert spans == [(BEGAN + end_ms * MS,)]


@pytest.mark.parametrize(("failed", "outcome"), [(0, "finished"), (1, "failed")])
def test_run_whose_own_row_found_no_room_ended_as_its_header_says(
    journals, run_folder, failed, outcome
) -> None:
    """A full ring costs what it had no room for, not how the run ended, and when."""
    program = Program(journals, run_folder)
    program.step(10)
    program.journal.say(Word.END_TIME, 50 * MS)
    program.journal.say(Word.FAILED, failed)
    program.journal.close()
    read_when_dead(program, journals)

    assert ends(run_folder) == (outcome, 50)


def test_agent_that_goes_on_knows_when_the_one_before_saw_the_process_alive(
    journals, run_folder, agent_of
) -> None:
    """Also where the journal itself is gone: then nobody looks at it again."""
    program = Program(journals, run_folder)
    program.step(10)
    first = agent_of(program)
    first.tick()
    first.mark()
    (journal,) = first._state.journals.values()
    alive_ns = journal.alive_ns
    del first
    program.journal.release()
    (journals / "0-1-1.journal").unlink()
    Agent(
        agent_folder(program.meta), Tail(journals), Options(policy=Policy(), sources=frozenset())
    ).run()

    ((outcome, end),) = Store(run_folder).rows("SELECT outcome, end_ns FROM processes")
    assert (outcome, end) == ("killed", BEGAN + alive_ns)
    assert alive_ns > 20 * MS


@pytest.mark.fault("F53", "F94")
def test_what_was_written_over_is_left_out_and_counted(
    program, agent_of, run_folder, random_words
) -> None:
    """Times that cannot be stop no table: such rows are lost as damaged, and the rest is there."""
    program.step(10)
    for start, end in ((random_words[0], random_words[1]), (50 * MS, 40 * MS), (60 * MS, 1 << 63)):
        row = (program.run + 77, program.run, program.run, 11, program.name("wild"))
        program.journal.put(start, end, *row, Kind.SECTION)
    program.open("wild", random_words[2] // MS)
    for word in (Word.STEP_TIME, Word.LOST_OPEN):
        program.journal.words[word] = random_words[3]
    program.step(30)
    program.stop(90)
    agent_of(program).run()

    spans = accounts(run_folder)["spans"]["store"]
    assert adds_up(spans)
    assert spans["lost"] == {"damaged": 4}
    assert [row["number"] for row in table(run_folder, "steps")] == [100, 101]
    assert {row["name"] for row in table(run_folder, "spans")}.isdisjoint({"wild"})
    assert ends(run_folder) == ("finished", 90)


@pytest.fixture(params=range(5))
def random_words(request):
    """What a wild write leaves."""
    seeded = random.Random(request.param)
    return [1 << 62 | seeded.getrandbits(64) for _ in range(4)]


def test_cancelled_sections_that_name_each_other_end_nothing(program, agent_of, run_folder) -> None:
    """Rows that were written over must not have the agent go round in a circle."""
    name = program.name("gone")
    for span, parent in ((70, 71), (71, 70)):
        program.journal.put(10, 20, span, parent, parent, TRACK, name, Kind.CANCEL)
    program.section("inside", 1, 2, parent=70, root=70)
    program.stop(30)
    agent_of(program).run()

    assert {row["name"] for row in table(run_folder, "spans")} == {"inside", "run"}


def test_row_whose_number_was_written_over_is_counted(program, agent_of, run_folder) -> None:
    """No look finds it, but what it leaves in its place is not what a killed process leaves."""
    program.step(0)
    program.section("hit", 20, 21)
    journal = program.journal
    slot = journal.draw() - 1
    journal.words[(journal.shape.ring_at >> 3) + slot * 8 + 7] = 1 << 63
    program.stop(30)
    agent_of(program).run()

    spans = accounts(run_folder)["spans"]["store"]
    assert adds_up(spans)
    assert (spans["created"], spans["lost"]) == (program.sections, {"damaged": 1})
