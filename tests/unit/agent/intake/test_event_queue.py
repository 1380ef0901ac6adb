"""Nothing is lost, and memory is bounded, while rows arrive faster than they are processed."""

from __future__ import annotations

import resource
import signal
from itertools import islice

import pytest
from by_hand import Program, accounts, adds_up, table
from servers.running import wait_until

from otel_mlperf.agent.intake.event_queue import MARK_ROWS, EventQueue
from otel_mlperf.agent.intake.spiller import Spiller
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.intake.write_ahead_log import Log
from otel_mlperf.agent.lifecycle import agent_loop
from otel_mlperf.agent.model.events import Joined, Left, Mark, Named, Polled
from otel_mlperf.errors import StoreError
from otel_mlperf.journal.layout import ROW_BYTES, Word

STEPS = 3000
"""Twelve thousand rows, of a ring that has room for sixteen thousand."""


def rounds(program, spill, count: int) -> None:
    """So many times as many rows as nearly fill the ring, with a spill after each."""
    for n in range(count):
        for i in range(n * STEPS, (n + 1) * STEPS):
            program.step(i * 10)
        spill()


@pytest.fixture
def queue(program, journals, tmp_path):
    tail = Tail(journals, {program.journal.path: program.journal.buffer})
    made = EventQueue(Log(tmp_path, 1), tail, 1 << 30)
    made.put(tail.find())
    yield made
    tail.close()


def test_rows_that_nobody_works_out_yet_make_room(program, agent_of, run_folder) -> None:
    """Four rings full come while the agent is at work, and all of them arrive."""
    agent = agent_of(program)
    agent.tick()
    rounds(program, agent._queue.spill, 5)
    program.stop(5 * STEPS * 10 + 100)
    agent.run()

    assert program.journal.words[Word.LOST_RING_FULL] == 0
    assert [s["n"] for s in table(run_folder, "steps")] == list(range(5 * STEPS))
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert adds_up(account)


def test_what_is_behind_waits_on_disk(program, queue, tmp_path) -> None:
    """Of all that waits, memory holds four megabytes; it comes out whole and in order."""
    rounds(program, queue.spill, 6)

    assert queue.held_bytes <= 4 << 20 < queue.waiting_bytes
    events = [event for batch in queue.take_waiting() for event in batch]
    assert queue.held_bytes == queue.waiting_bytes == 0
    nexts = [event.next for event in events if isinstance(event, Polled)]
    assert nexts == sorted(nexts)
    rows = sum(len(event.rows) for event in events if isinstance(event, Polled)) // ROW_BYTES
    assert rows == 6 * STEPS * 4 + 1
    assert list(Log(tmp_path, 1).replay()) == events


def test_a_mark_follows_many_rows(program, queue) -> None:
    """What is worked out at once is bounded, however much comes."""
    rounds(program, queue.spill, 6)
    at_once = [0]
    for event in (event for batch in queue.take_waiting() for event in batch):
        match event:
            case Polled(rows=rows):
                at_once[-1] += len(rows) // ROW_BYTES
            case Mark():
                at_once.append(0)

    assert sum(at_once) == 6 * STEPS * 4 + 1
    assert len(at_once) == 12
    assert max(at_once) <= MARK_ROWS


def test_children_are_read_before_their_parent_ends(program, queue, journals, run_folder) -> None:
    """Rows of a child forked after the search for journals are read with the end of its parent."""
    child = Program(journals, run_folder, name="child", is_child=True)
    child.section("forked", 1, 2)
    program.stop(3)
    last_mark = queue.mark()

    events = [event for batch in queue.take_waiting() for event in batch]
    before_mark = events[: events.index(last_mark)]
    of_child = [event for event in before_mark if event.journal == "child.journal"]
    assert {Joined, Named, Polled, Left} == {type(event) for event in of_child}


def test_ranks_that_end_with_many_rows_each_end_one_by_one(journals, agent_of, run_folder) -> None:
    """Some are worked out and gone before the rest of the same look is: all of each arrives."""
    programs = [Program(journals, run_folder, rank, 4) for rank in range(4)]
    for program in programs:
        rounds(program, lambda: None, 1)
        program.stop(STEPS * 10 + 100)

    agent_of(*programs).run()

    steps = [(s["rank"], s["n"]) for s in table(run_folder, "steps")]
    assert sorted(steps) == [(rank, n) for rank in range(4) for n in range(STEPS)]
    ended = [p["outcome"] for p in table(run_folder, "processes")]
    assert ended.count("finished") == 4
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == sum(program.sections for program in programs)
    assert adds_up(account)


def test_what_was_spilled_outlives_the_agent(program, agent_of, run_folder) -> None:
    """Killed before it acted on anything of it, an agent is followed by one that does."""
    first = agent_of(program)
    first.tick()
    rounds(program, first._queue.spill, 3)
    del first
    program.stop(3 * STEPS * 10 + 100)
    agent_of(program).run()

    assert [s["n"] for s in table(run_folder, "steps")] == list(range(3 * STEPS))
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert adds_up(account)


def test_an_agent_that_is_killed_halfway_is_taken_up_there(
    program, agent_of, run_folder, monkeypatch
) -> None:
    """A state may end in the middle of the log: what is behind that counts, once."""
    monkeypatch.setattr(agent_loop, "_MAX_ROWS", 100)
    first = agent_of(program)
    first.tick()
    rounds(program, first._queue.spill, 5)
    waiting = first._queue.take_waiting()
    monkeypatch.setattr(first._queue, "take_waiting", lambda: islice(waiting, 5))
    first._catch_up()
    assert first._state.logged > 0
    assert 0 < len(table(run_folder, "steps")) < 5 * STEPS
    del first
    program.stop(5 * STEPS * 10 + 100)
    agent_of(program).run()

    assert [s["n"] for s in table(run_folder, "steps")] == list(range(5 * STEPS))
    ids = [s["span_id"] for s in table(run_folder, "spans")]
    assert len(ids) == len(set(ids))
    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections
    assert adds_up(account)


@pytest.mark.fault("F40")
def test_a_full_disk_leaves_rows_where_they_are(program, queue) -> None:
    """What cannot be made durable is not spilled, until the disk takes what it refused."""
    freed = program.journal.words[Word.TAIL]
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
        rounds(program, queue.spill, 1)
        rounds(program, queue.spill, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert queue.is_refused
    assert program.journal.words[Word.TAIL] == freed
    queue.look()

    assert not queue.is_refused
    assert program.journal.words[Word.TAIL] > 4 * STEPS


def test_no_more_is_spilled_than_may_wait(program, journals, tmp_path) -> None:
    """The disk is not filled either: what comes then stays in the journal."""
    tail = Tail(journals, {program.journal.path: program.journal.buffer})
    queue = EventQueue(Log(tmp_path, 1), tail, most_bytes=4 * STEPS * ROW_BYTES)
    queue.put(tail.find())
    rounds(program, queue.spill, 3)

    assert program.journal.words[Word.LOST_RING_FULL] > 0
    assert queue.waiting_bytes < 9 * STEPS * ROW_BYTES
    tail.close()


def test_rows_that_were_taken_and_not_written_down_are_never_freed(
    program, queue, monkeypatch
) -> None:
    """Whatever comes between the two ends the agent, and the next one reads them again."""
    monkeypatch.setattr("otel_mlperf.agent.intake.tail.cut_rows", lambda *_: map(int, "x"))
    freed = program.journal.words[Word.TAIL]
    with pytest.raises(ValueError, match="invalid literal"):
        rounds(program, queue.spill, 1)
    at_first = program.journal.words[Word.TAIL]
    for i in range(10):
        program.step(STEPS * 10 + i * 10)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="invalid literal"):
        queue.look()

    assert freed == at_first == program.journal.words[Word.TAIL]


def test_events_that_somebody_removed_end_the_agent(program, queue, tmp_path) -> None:
    """Rows that are on disk alone, and are gone, must not look as if there had been none."""
    rounds(program, queue.spill, 6)
    for path in tmp_path.glob("wal-*"):
        path.write_bytes(b"")

    with pytest.raises(StoreError, match="differs from what was written"):
        list(queue.take_waiting())


def test_room_is_made_while_the_agent_is_at_work_alone(program, queue) -> None:
    """The thread looks only meanwhile: an agent that waits looks for itself."""
    spiller = Spiller(queue)
    spiller.start()
    rounds(program, lambda: None, 1)
    assert program.journal.words[Word.TAIL] == 1
    with spiller.at_work():
        wait_until(lambda: program.journal.words[Word.TAIL] > 4 * STEPS)
    spiller.stop()

    assert not spiller.is_alive()
