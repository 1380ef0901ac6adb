"""Nothing is lost of a burst before the agent is loaded, and nothing is read twice."""

from __future__ import annotations

import os
import subprocess

import pytest
from by_hand import accounts, adds_up, agent_folder, table

from otel_mlperf.agent.intake import first_look
from otel_mlperf.agent.intake.first_look import FirstLook
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.journal.journal_folder import count_moved, moved_path
from otel_mlperf.journal.layout import ROW_BYTES, Word

STEPS = 3000
"""Twelve thousand rows, of a ring that has room for sixteen thousand."""


@pytest.fixture
def first(journals):
    journals.chmod(0o700)
    return FirstLook(journals)


@pytest.fixture
def agent_after(journals):
    """An agent that takes over from a first look, as a process does."""

    def start(program, first: FirstLook) -> Agent:
        tail = Tail(journals, {program.journal.path: program.journal.buffer}, first.stop)
        return Agent(agent_folder(program.meta), tail, Options(policy=Policy(), readings="none"))

    return start


def steps(program, begin: int, end: int) -> None:
    for i in range(begin, end):
        program.step(i * 10)


def check_all_there(program, run_folder, count: int) -> None:
    assert program.journal.words[Word.LOST_RING_FULL] == 0
    assert [s["n"] for s in table(run_folder, "steps")] == list(range(count))
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert adds_up(account)


def test_it_needs_the_standard_library_alone():
    """What takes long to load is loaded while it looks."""
    code = (
        "import sys\nbefore = set(sys.modules)\n"
        "import otel_mlperf.agent.__main__\n"
        "from otel_mlperf.agent.intake.first_look import FirstLook\n"
        "from otel_mlperf.journal.folder_lock import OnlyOne\n"
        "print(*{name.partition('.')[0] for name in sys.modules} & "
        "{'numpy', 'msgspec', 'pyarrow', 'opentelemetry', 'logging'})"
    )
    from otel_mlperf.own_processes import command

    line = command("otel_mlperf.agent.__main__", "")
    place = line.index("-c") + 1
    text, _, _ = line[place].partition("from otel_mlperf.agent.__main__")
    line[place] = text + code
    assert subprocess.check_output(line, text=True).split() == []


def test_rows_make_room_before_there_is_an_agent(program, first, agent_after, run_folder) -> None:
    """Three rings full come before it is loaded, and all of them arrive, in order."""
    for n in range(3):
        steps(program, n * STEPS, (n + 1) * STEPS)
        first.look()
    steps(program, 3 * STEPS, 4 * STEPS)
    agent = agent_after(program, first)
    agent.tick()
    steps(program, 4 * STEPS, 5 * STEPS)
    agent.tick()
    program.stop(5 * STEPS * 10)
    agent.run()

    check_all_there(program, run_folder, 5 * STEPS)
    assert not os.path.exists(moved_path(program.journal.path))


def test_one_that_was_killed_is_gone_on_after(
    program, first, journals, agent_after, run_folder
) -> None:
    """What it had moved stays moved, be it that its last row is torn or its room was not made."""
    steps(program, 0, STEPS)
    first.look()
    first.stop()
    moved = count_moved(program.journal.path)
    with open(moved_path(program.journal.path), "ab") as file:
        file.write(b"x" * (ROW_BYTES // 2))
    second = FirstLook(journals)
    steps(program, STEPS, 2 * STEPS)
    second.look()
    assert count_moved(program.journal.path) == moved + STEPS * 4
    agent = agent_after(program, second)
    program.stop(2 * STEPS * 10)
    agent.run()

    check_all_there(program, run_folder, 2 * STEPS)


def test_a_journal_that_an_agent_knows_is_left_alone(program, first, journals) -> None:
    """Which rows that one has read, its log alone can say."""
    tail = Tail(journals, {program.journal.path: program.journal.buffer})
    tail.find()
    tail.durable()
    steps(program, 0, STEPS)
    first.look()

    assert program.journal.words[Word.TAIL] == 1
    assert not os.path.exists(moved_path(program.journal.path))
    tail.close()


@pytest.mark.parametrize("left", [0, 100])
def test_rows_that_somebody_removes_are_counted(
    program, first, agent_after, run_folder, left
) -> None:
    """What is gone before the agent came to it is lost as damaged, and all that follows is read."""
    steps(program, 0, 100)
    first.look()
    agent = agent_after(program, first)
    agent._queue.put(agent._tail.find())
    os.truncate(moved_path(program.journal.path), left * ROW_BYTES)
    steps(program, 100, 200)
    program.stop(2000)
    agent.run()

    account = accounts(run_folder)["spans"]["store"]
    assert account["lost"] == {"damaged": 401 - left}
    assert adds_up(account)
    assert [s["n"] for s in table(run_folder, "steps")][-100:] == list(range(100, 200))


def test_a_hole_ends_what_is_moved(program, first, agent_after, run_folder) -> None:
    """A row that is drawn and not stored yet is read in its turn, as those behind it."""
    steps(program, 0, 10)
    slot = program.journal.draw()
    steps(program, 10, 20)
    first.look()
    assert program.journal.words[Word.TAIL] == slot
    agent = agent_after(program, first)
    agent.tick()
    program.journal.store(slot, 1, 2, 77, program.run, program.run, 11, program.name("late"), 1)
    program.sections += 1
    agent.tick()
    program.stop(1000)
    agent.run()

    check_all_there(program, run_folder, 20)


def test_it_takes_no_more_room_than_others_can_spare(program, first, monkeypatch) -> None:
    """Where there is little, rows stay in the ring, and nothing is moved by halves."""
    monkeypatch.setattr(first_look, "_SHARE", 1 << 60)
    steps(program, 0, STEPS)
    first.look()

    assert program.journal.words[Word.TAIL] == 1
    assert count_moved(program.journal.path) == 0


def test_a_processor_that_shows_stores_late_is_waited_for(program, first, monkeypatch) -> None:
    """There a row counts from the second look that sees it."""
    monkeypatch.setattr(first_look, "stores_in_order", lambda: False)
    steps(program, 0, 10)
    first.look()
    assert count_moved(program.journal.path) == 0
    steps(program, 10, 20)
    first.look()

    assert 0 < count_moved(program.journal.path) < 60


def test_foreign_files_stop_nobody(program, first, journals) -> None:
    """What is no journal beside one is left alone, and so is a journal that is being made."""
    (journals / "0-2-1.journal").write_bytes(b"x" * 10)
    (journals / "0-3-1.journal").write_bytes(bytes(os.path.getsize(program.journal.path)))
    (journals / "0-4-1.journal").symlink_to("/dev/zero")
    steps(program, 0, 10)
    first.look()

    assert count_moved(program.journal.path) == 41


def test_the_thread_ends_when_it_is_told(program, first) -> None:
    """Nobody frees a slot afterwards."""
    first.start()
    first.stop()
    freed = program.journal.words[Word.TAIL]
    steps(program, 0, STEPS)

    assert not first.is_alive()
    assert program.journal.words[Word.TAIL] == freed
