"""The check finds what is wrong with a run, its journals and its accounts."""

from __future__ import annotations

import json
import os
import struct

import pytest
from run_folders import S, digits

from otel_mlperf.analysis.run.item_accounts import RunAccount
from otel_mlperf.doctor.check_run import check_account, check_journals, check_run, check_windows
from otel_mlperf.findings.finding import Check
from otel_mlperf.journal.journal_writer import Journal
from otel_mlperf.journal.layout import WORD, Word
from otel_mlperf.store.run_folders import read_run
from otel_mlperf.store.table_reader import Store

META = {
    "run_id": "3f2a",
    "run_name": "digits",
    "run_folder": "/tmp/x",
    "service": "digits",
    "host": "node1",
    "pid": 4242,
    "rank": 2,
    "run_span": 1,
    "monotonic_ns": 1,
    "unix_ns": 1,
}


@pytest.mark.parametrize(
    ("account", "outcome", "expected"),
    [
        (
            RunAccount(created=480, delivered=240, rolled_up=40, unselected=200),
            "finished",
            Check(
                "ok",
                "x",
                "480 created = 240 delivered + 40 rolled up + 200 not sampled (counted in totals "
                "only)",
            ),
        ),
        (
            RunAccount(created=10, delivered=7, pending=3),
            "running",
            Check("ok", "x", "10 created = 7 delivered + 3 pending"),
        ),
        (
            RunAccount(created=10, delivered=7, pending=3),
            "finished",
            Check(
                "warn", "x", "10 created = 7 delivered + 3 pending",
                "otel-mlperf doctor 3f2a --recover",
            ),
        ),
        (
            RunAccount(created=10, delivered=7, lost={"ring_full": 3, "rejected": 0}),
            "finished",
            Check(
                "warn", "x", "10 created = 7 delivered + 3 lost (ring_full)",
                "raise OTEL_MLPERF_JOURNAL_ROWS, or use aggregate=True for short spans",
            ),
        ),
        (
            RunAccount(created=10, delivered=7, lost={"rejected": 3}),
            "finished",
            Check(
                "warn", "x", "10 created = 7 delivered + 3 lost (rejected)",
                "see agent/*/agent.log in the run folder",
            ),
        ),
        (
            RunAccount(created=10, delivered=7),
            "finished",
            Check(
                "FAIL", "x", "10 created = 7 delivered; 3 items are unaccounted for",
                "this is a bug in otel_mlperf: please report the bug with agent/*/agent.log",
            ),
        ),
    ],
)  # fmt: skip
def test_every_item_is_accounted_for(account, outcome, expected):
    """The identity is written out; what it leaves open is a failure."""
    assert check_account("x", account, outcome, "3f2a") == expected


def test_a_finished_run_has_nothing_left_to_read(tmp_path):
    """And an account of each signal and destination."""
    run = read_run(digits(tmp_path).write())
    accounts = {"spans": {"store": RunAccount(created=1, delivered=1)}}

    assert check_run(run, Store(run.path), accounts, str(tmp_path)) == [
        Check("ok", "agent", "the run has ended; all its data is stored"),
        Check("ok", "spans → store", "1 created = 1 delivered"),
    ]


def test_file_of_the_console_exporter_is_named(tmp_path):
    """Nobody sees what an agent in the background prints."""
    run = read_run(digits(tmp_path).write())
    file = run.path / "agent" / "node1" / "console-spans.txt"
    file.parent.mkdir(parents=True)
    file.touch()

    checks = check_run(run, Store(run.path), {}, str(tmp_path))
    assert Check("ok", "console exporter", f"output is written to {file}") in checks


def test_a_journal_that_found_no_room_in_shared_memory_is_seen(tmp_path):
    """It lies in the run folder then."""
    run = read_run(digits(tmp_path).write())
    (run.path / "journals").mkdir()
    journal(run.path / "journals", 1).release()

    first, *_ = check_run(run, Store(run.path), {}, str(tmp_path))

    assert first.found == "2-4242-0.journal belongs to a process that has ended"


def journal(folder, beat_ns, **lost):
    """A journal that an agent looked at last at ``beat_ns``; closed by the test."""
    made = Journal(str(folder / "2-4242-0.journal"), 2048, META)
    made.words[Word.BEAT] = beat_ns
    made.words[Word.AGENT_PID] = 77
    for word, count in lost.items():
        made.words[Word[word]] = count
    return made


@pytest.mark.parametrize(
    ("beat_ns", "level", "found"),
    [
        (99_500_000_000, "ok", "agent process 77 read the journal 0.5 s ago"),
        (60_000_000_000, "FAIL", "the agent last read the journal 40 s ago"),
        (0, "FAIL", "no agent has read the journal"),
    ],
)
def test_an_agent_is_alive_if_it_looked_at_the_journal_lately(tmp_path, beat_ns, level, found):
    """Of a process that lives: another one asks for its lock."""
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        made = journal(tmp_path, beat_ns)
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        made.release()
        os._exit(0)
    os.read(ready[0], 1)
    checks = check_journals([tmp_path], "3f2a", "running", 100_000_000_000)
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for end in (*ready, *done):
        os.close(end)

    assert [(check.level, check.what, check.found) for check in checks] == [
        (level, "agent, rank 2", found)
    ]


def test_a_journal_of_a_dead_process_is_to_be_recovered(tmp_path):
    """With what its process had to drop."""
    journal(tmp_path, 1, LOST_RING_FULL=12, LOST_ENTRIES=3).release()

    assert check_journals([tmp_path], "3f2a", "running", 100) == [
        Check(
            "warn", "dropped", "12 spans (the journal was full)",
            "raise OTEL_MLPERF_JOURNAL_ROWS, or use aggregate=True for short spans",
        ),
        Check(
            "warn", "dropped", "3 names over the limit, recorded as 'other'",
            "use fewer names: pass varying parts as attributes",
        ),
        Check(
            "warn", "agent, rank 2", "2-4242-0.journal belongs to a process that has ended",
            "otel-mlperf doctor 3f2a --recover",
        ),
    ]  # fmt: skip


def test_a_callback_that_fails_is_no_fault_of_the_recorder(tmp_path):
    """It is the program's own, and told apart from errors inside the recorder."""
    journal(tmp_path, 1, CALLBACK_ERRORS=2, INTERNAL_ERRORS=1).release()

    dropped, callbacks, _ = check_journals([tmp_path], "3f2a", "running", 100)

    assert dropped.found == "1 errors inside the recorder"
    assert callbacks == Check(
        "warn", "callbacks", "2 calls of callbacks of the program failed",
        "see the errors in the program's log; training continued",
    )  # fmt: skip


def test_a_file_that_is_no_journal_is_told(tmp_path):
    """And hides no other."""
    (tmp_path / "0-1-0.journal").write_bytes(b"x" * 10)

    (check,) = check_journals([tmp_path], "3f2a", "running", 100)

    assert (check.level, check.what, check.do) == ("warn", "journal", "remove the file")


def test_a_run_without_an_end_and_without_a_journal_is_elsewhere(tmp_path):
    """Or its end was not seen."""
    (check,) = check_journals([tmp_path], "3f2a", "running", 100)

    assert (check.level, check.found) == (
        "warn",
        "the run has not ended, but this node has no journal of the run",
    )


def test_words_are_where_the_layout_says(tmp_path):
    """What the other tests write is what the reader reads."""
    made = journal(tmp_path, 7 * S)
    made.release()

    with (tmp_path / "2-4242-0.journal").open("rb") as file:
        file.seek(Word.BEAT * WORD)
        assert struct.unpack("<Q", file.read(WORD)) == (7 * S,)


def test_rows_of_devices_that_are_not_known_are_a_warning(tmp_path):
    """The figures of devices lack them."""
    built = digits(tmp_path)
    built.row(
        "windows", rank=0, restart=0, digest="0", number=0, trace="t.json", start_ns=0, end_ns=9,
        is_unix_time=True, steps="[]", categories="{}", orphans="{}", damage="[]",
        unknown_rows='[{"process": "NPU 0", "events": 2, "is_device": true}]',
    )  # fmt: skip
    run = read_run(built.write())

    (check,) = check_windows(Store(run.path))

    assert (check.level, check.found) == (
        "warn", "device rows of process NPU 0 (2 events) have unknown types"
    )  # fmt: skip


def test_what_a_profiler_window_lacks_is_told(tmp_path):
    """Of each that lacks something, with what to do; the others are counted with their launches."""
    built = digits(tmp_path)
    loss = {
        "kind": "kernel", "missing": 5, "of": 10, "start_ns": 0, "end_ns": 1, "words": "5 of 10",
    }  # fmt: skip
    for rank, losses in ((0, []), (1, [loss])):
        key = {"rank": rank, "restart": 0, "digest": f"{rank}"}
        built.row(
            "windows", **key, number=0, trace=f"rank{rank}.json", start_ns=0, end_ns=9,
            is_unix_time=True, steps="[]", categories="{}", orphans="{}", damage="[]",
        )  # fmt: skip
        built.row(
            "completeness", **key, ratio=1 - len(losses) / 2, is_complete=not losses,
            has_device_times=not losses, launches=10, answered=10 - 5 * len(losses),
            losses=json.dumps(losses), whole="null",
        )  # fmt: skip
    run = read_run(built.write())
    accounts = {"spans": {"store": RunAccount(created=1, delivered=1)}}

    _, window, profiler, _ = check_run(run, Store(run.path), accounts, str(tmp_path))

    assert window == Check(
        "warn",
        "window",
        "rank1.json of rank 1: 5 of 10",
        "GPU figures of this window are too low; profile again, with fewer steps",
    )
    assert profiler == Check(
        "ok", "profiler", "1 window complete: 10 of 10 launches have a device record"
    )
