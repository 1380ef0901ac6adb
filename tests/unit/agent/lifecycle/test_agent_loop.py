"""Nothing is lost or doubled when one agent follows another."""

from __future__ import annotations

import resource
import signal
import time

import pytest
from by_hand import accounts, adds_up, table

from otel_mlperf.agent.lifecycle.agent_loop import look_interval_s
from otel_mlperf.journal.layout import Word
from otel_mlperf.store.parts import read_as_of


@pytest.mark.fault("F27")
def test_second_agent_goes_on_without_loss_or_double(program, agent_of, run_folder) -> None:
    """An agent that vanished between two looks is replaced; every row counts once."""
    for i in range(120):
        program.step(i * 10)
    first = agent_of(program)
    first.tick()
    first.mark()
    for i in range(120, 200):
        program.step(i * 10)
    first.tick()
    del first
    program.stop(2100)
    agent_of(program).run()

    assert [s["n"] for s in table(run_folder, "steps")] == list(range(200))
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert adds_up(account)
    ids = [s["span_id"] for s in table(run_folder, "spans")]
    assert len(ids) == len(set(ids))


def test_run_that_is_over_leaves_a_file_a_table(program, agent_of, run_folder) -> None:
    """However often the tables were written: of hundreds of nodes a reader opens every file."""
    agent = agent_of(program)
    for i in range(5):
        program.step(i * 10)
        agent.tick()
        agent.mark()
        agent.flush(i)
    parts = [*(run_folder / "tables" / "steps").iterdir()]
    program.stop(100)
    agent.run()

    assert len(parts) > 1
    assert len([*(run_folder / "tables" / "steps").iterdir()]) == 1
    assert [s["n"] for s in table(run_folder, "steps")] == list(range(5))


@pytest.mark.fault("F40")
def test_journal_that_was_read_is_not_read_again_after_a_full_disk(
    program, agent_of, run_folder
) -> None:
    """An agent that read a journal to its end but could not store it leaves that to the next."""
    for i in range(20):
        program.step(i * 10)
    program.stop(300)
    tables = run_folder / "tables"
    tables.write_text("in the way")
    first = agent_of(program)
    first.tick()
    tables.unlink()
    del first
    agent_of(program).run()

    assert [s["n"] for s in table(run_folder, "steps")] == list(range(20))
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert adds_up(account)


def test_tables_that_somebody_asks_for_are_written_at_the_next_look(
    program, agent_of, run_folder
) -> None:
    """Whatever had ended by then is in them, and the journal and the run folder say so."""
    agent, words = agent_of(program), program.journal.words
    program.step(0)
    agent.mark()
    program.step(10)
    asked_ns, unix_ns = time.monotonic_ns(), time.time_ns()
    words[Word.TABLES_REQUESTED] = asked_ns
    agent.tick()

    assert [s["n"] for s in table(run_folder, "steps")] == [0, 1]
    assert asked_ns <= words[Word.TABLES_UNTIL] <= time.monotonic_ns()
    assert unix_ns <= read_as_of(run_folder, "node") <= time.time_ns()


def test_tables_are_asked_for_once(program, agent_of) -> None:
    """What was written is not asked for any more, nor is a time to come, or the disk refuses it."""
    agent, words = agent_of(program), program.journal.words
    agent.tick()
    agent.mark()
    words[Word.TABLES_REQUESTED] = time.monotonic_ns()
    assert agent._is_flush_requested
    agent.mark()
    assert not agent._is_flush_requested
    words[Word.TABLES_REQUESTED] = time.monotonic_ns() + 10**15
    assert not agent._is_flush_requested


@pytest.mark.fault("F40")
def test_rows_that_the_log_refused_are_read_again(program, agent_of, run_folder) -> None:
    """Nothing is freed that is not durable: an agent on a full disk loses no row."""
    first = agent_of(program)
    for i in range(20):
        program.step(i * 10)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
        first.tick()
        first.mark()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    freed = program.journal.words[Word.TAIL]
    del first
    program.stop(300)
    agent_of(program).run()

    assert freed == 1
    assert [s["n"] for s in table(run_folder, "steps")] == list(range(20))
    assert accounts(run_folder)["spans"]["store"]["created"] == program.sections


@pytest.mark.parametrize(("readings_s", "look_s"), [(5.0, 0.5), (0.2, 0.2), (0.01, 0.1)])
def test_readings_that_are_asked_for_often_are_looked_for_often(readings_s, look_s):
    """An interval below half a second is kept to, down to a tenth."""
    assert look_interval_s(readings_s) == look_s
