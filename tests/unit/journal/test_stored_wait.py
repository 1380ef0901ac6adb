"""The closing text waits for the agent, but not beyond its timeout."""

from __future__ import annotations

import re
import struct
import threading
import time

from otel_mlperf.journal.folder_lock import OnlyOne
from otel_mlperf.journal.layout import HEADER_BYTES, WORD, Word
from otel_mlperf.journal.stored_wait import (
    find_losses,
    request_tables,
    wait_for_tables,
    wait_until_stored,
)


def journal(folder, stored, name="3-1234-0.journal"):
    """A journal's header that says what is stored."""
    path = folder / name
    path.write_bytes(bytes(HEADER_BYTES))
    store(path, stored)
    return path


def store(path, value, word=Word.STORED):
    """What the agent does after it has written the tables."""
    with path.open("r+b") as file:
        file.seek(word * WORD)
        file.write(struct.pack("<Q", value))


def word(path, number):
    """What a word of the header says."""
    return struct.unpack_from("<Q", path.read_bytes(), number * WORD)[0]


def test_what_is_stored_already_is_not_waited_for(tmp_path):
    """Up to the slot that was asked for, or beyond."""
    path = journal(tmp_path, 120)

    assert wait_until_stored([f"{path}:120", f"{path}:7"], patience_s=0) == []


def test_a_journal_that_is_gone_has_been_drained(tmp_path):
    """The agent removes it when all of it is stored."""
    assert wait_until_stored([f"{tmp_path}/3-1-0.journal:5"], patience_s=0) == []


def test_what_is_missing_at_the_end_is_said_by_rank(tmp_path):
    """How much of how much."""
    path = journal(tmp_path, 1000)

    assert wait_until_stored([f"{path}:1250"], patience_s=0) == [
        "rank 3: 250 of 1,250 rows are still being stored"
    ]


def test_what_found_no_room_is_told_before_anybody_has_counted_it(tmp_path):
    """With what to do about it; nothing where nothing was lost, or the journal is gone."""
    full, other = journal(tmp_path, 9), journal(tmp_path, 9, "4-1-0.journal")
    with full.open("r+b") as file:
        file.seek(Word.LOST_RING_FULL * WORD)
        file.write(struct.pack("<Q", 484_042))

    assert find_losses([f"{full}:9", f"{other}:9"]) == [
        "rank 3: 484,042 spans lost because the journal was full",
        "raise OTEL_MLPERF_JOURNAL_ROWS, or use aggregate=True for short spans",
    ]
    assert find_losses([f"{other}:9", f"{tmp_path}/5-1-0.journal:9"]) == []


def test_the_wait_ends_when_the_agent_says_so(tmp_path):
    """Long before its patience does."""
    path = journal(tmp_path, 0)
    agent = threading.Thread(target=store, args=(path, 9))
    agent.start()

    assert wait_until_stored([f"{path}:9"], patience_s=60) == []
    agent.join()


def test_whoever_asks_for_the_tables_waits_until_they_are_written(tmp_path):
    """Each journal is told when; the wait ends when each says that it is stored up to then."""
    paths = [journal(tmp_path, 0), journal(tmp_path, 0, "4-1-0.journal")]
    (tmp_path / "no journal").write_bytes(b"")

    with OnlyOne(tmp_path):
        before_ns = time.monotonic_ns()
        asked = request_tables(str(tmp_path), str(tmp_path / "nowhere"))
        assert asked.keys() == set(paths)
        for path, asked_ns in asked.items():
            assert before_ns <= word(path, Word.TABLES_REQUESTED) == asked_ns <= time.monotonic_ns()
            assert path.stat().st_size == HEADER_BYTES
        agent = threading.Thread(
            target=lambda: [store(path, ns, Word.TABLES_UNTIL) for path, ns in asked.items()]
        )
        agent.start()
        assert wait_for_tables(asked, patience_s=60) == []
        agent.join()


def test_tables_that_do_not_come_are_said_by_rank(tmp_path):
    """Since when something is missing, and whether anybody is still there to store it."""
    late, gone = journal(tmp_path, 0), journal(tmp_path, 0, "4-1-0.journal")
    store(late, time.monotonic_ns() - 3 * 10**9, Word.TABLES_UNTIL)
    asked = request_tables(str(tmp_path))
    gone.unlink()

    with OnlyOne(tmp_path):
        (said,) = wait_for_tables(asked, patience_s=0)
    (unread,) = wait_for_tables(asked, patience_s=60)

    assert re.fullmatch(r"rank 3: the last \d+\.\d s are not stored yet", said)
    assert unread.endswith("are not stored yet; no agent reads the journal of this rank")


def test_other_ranks_of_the_node_are_waited_for(tmp_path):
    """A rank that is still there is named; one whose journal goes away meanwhile is not."""
    mine, other = journal(tmp_path, 9, "0-1-1.journal"), journal(tmp_path, 0, "1-2-1.journal")
    still_there = wait_until_stored([f"{mine}:9"], patience_s=0)
    agent = threading.Thread(target=other.unlink)
    agent.start()

    assert still_there == ["rank 1 has not ended yet"]
    assert wait_until_stored([f"{mine}:9"], patience_s=60) == []
    agent.join()
