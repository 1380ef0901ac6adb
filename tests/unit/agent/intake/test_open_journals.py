"""Journal files removed during reading are read to the end, and recreated ones followed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from by_hand import accounts, adds_up, agent_folder, table

from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.journal.layout import HEADER_BYTES, Shape

RECORDS = """
import os, sys
from pathlib import Path
from by_hand import Program
program = Program(Path(sys.argv[1]), Path(sys.argv[2]))
at = 0
for line in sys.stdin:
    if line == "remove\\n":
        os.unlink(program.journal.path)
    elif line == "make again\\n":
        program.journal.make_file_again()
    elif line == "stop\\n":
        program.stop(at)
    else:
        program.step(at)
        at += 10
    print(program.sections, flush=True)
"""


class Elsewhere:
    """A program in a process of its own, which does one thing at a time."""

    def __init__(self, journals, run_folder) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", RECORDS, journals, run_folder],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.sections = 0

    def do(self, *words: str) -> None:
        for word in words:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
            self.sections = int(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def elsewhere(journals, run_folder):
    program = Elsewhere(journals, run_folder)
    yield program
    program.end()


@pytest.fixture
def agent(elsewhere, journals):
    """An agent that has found its journal, with the one step that is in it."""
    elsewhere.do("step")
    tail = Tail(journals)
    (joined,) = tail.find()
    tail.close()
    agent = Agent(
        agent_folder(joined.meta), Tail(journals), Options(policy=Policy(), readings="none")
    )
    agent.tick()
    return agent


def is_whole(run_folder, steps, sections):
    account = accounts(run_folder)["spans"]["store"]
    assert [row["n"] for row in table(run_folder, "steps")] == list(range(steps))
    assert account["created"] == sections
    assert account["lost"] == {}
    assert adds_up(account)


@pytest.mark.fault("F91")
def test_a_removed_file_is_read_on(agent, elsewhere, run_folder):
    """What is written after the removal is read from memory; nobody need make the file again."""
    elsewhere.do("remove", "step")
    agent.tick()
    elsewhere.do("step", "stop")
    agent.run()

    is_whole(run_folder, 3, elsewhere.sections)


def test_the_file_that_was_made_again_is_followed(agent, elsewhere, run_folder, journals):
    """Rows of before, between and after are read once each, and the new file goes at the end."""
    for _ in range(3):
        elsewhere.do("remove", "step")
        agent.tick()
        elsewhere.do("step", "make again", "step")
        agent.tick()
    elsewhere.do("stop")
    agent.run()

    is_whole(run_folder, 10, elsewhere.sections)
    assert list(journals.glob("*.journal*")) == []


def test_the_next_agent_reads_the_file_that_was_made_again(agent, elsewhere, run_folder, journals):
    """It goes on at the slot at which the one before ended, in another file."""
    agent.mark()
    elsewhere.do("remove", "step", "make again", "step", "stop")
    meta = next(iter(agent._tail.mains().values()))
    del agent
    Agent(agent_folder(meta), Tail(journals), Options(policy=Policy(), readings="none")).run()

    is_whole(run_folder, 3, elsewhere.sections)


@pytest.mark.parametrize("kept_bytes", [0, HEADER_BYTES - 1])
def test_a_file_without_its_header_is_given_up(agent, elsewhere, run_folder, journals, kept_bytes):
    """What had been read is accounted for, and the agent ends; a look into it would end it."""
    agent.mark()
    before = elsewhere.sections
    (journal,) = journals.glob("*.journal")
    os.truncate(journal, kept_bytes)
    agent.run()

    is_whole(run_folder, 1, before)
    assert list(journals.glob("*.journal")) == []


@pytest.mark.fault("F91")
def test_rows_that_are_cut_off_are_counted_and_those_after_them_read(
    agent, elsewhere, run_folder, journals
):
    """The file has its length again before the program meets the end of it."""
    elsewhere.do("step")
    (journal,) = journals.glob("*.journal")
    os.truncate(journal, Shape.of_rows(1 << 14).ring_at)
    agent.tick()
    elsewhere.do("step", "step", "stop")
    agent.run()

    account = accounts(run_folder)["spans"]["store"]
    assert [row["n"] for row in table(run_folder, "steps")] == [0, 2, 3]
    # The row that began the step is gone as well, and nobody can tell what a row was.
    assert account["lost"] == {"damaged": 4}
    assert account["created"] == elsewhere.sections + 1
    assert adds_up(account)


def test_more_than_a_look_takes_at_once_may_be_cut_off(agent, elsewhere, run_folder, journals):
    """Rows behind thousands of empty places are found."""
    elsewhere.do(*["step"] * 1500)
    (journal,) = journals.glob("*.journal")
    os.truncate(journal, Shape.of_rows(1 << 14).ring_at + 64)
    agent.tick()
    elsewhere.do("step")
    agent.tick()
    elsewhere.do("stop")
    agent.run()

    account = accounts(run_folder)["spans"]["store"]
    assert account["lost"] == {"damaged": 6000}
    assert account["created"] == elsewhere.sections + 1500
    assert adds_up(account)


def test_what_a_program_that_is_gone_had_written_is_counted(agent, elsewhere, run_folder, journals):
    """The next agent finds the file short, and the program has said how many rows it wrote."""
    agent.mark()
    meta = next(iter(agent._tail.mains().values()))
    del agent
    elsewhere.do("step", "stop")
    elsewhere.end()
    (journal,) = journals.glob("*.journal")
    os.truncate(journal, Shape.of_rows(1 << 14).ring_at)
    Agent(agent_folder(meta), Tail(journals), Options(policy=Policy(), readings="none")).run()

    account = accounts(run_folder)["spans"]["store"]
    assert account["lost"] == {"damaged": 5}  # the four rows of a step, and that of the run
    assert adds_up(account)
    assert list(journals.glob("*.journal")) == []
