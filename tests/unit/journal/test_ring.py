"""The journal's two sides against each other, in one process and across processes."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_files import open_files

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.journal_writer import Journal, _pieces
from otel_mlperf.journal.layout import HEADER_BYTES, MAGIC, META_AT, OTHER, WORD, Kind, State, Word
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.journal.ring_scan import PayloadParts, RingScan, rows_of_kind

if TYPE_CHECKING:
    from pathlib import Path

META = JournalMeta(
    run_id="r", run_name="n", run_folder="/nowhere", service="s", host="h", pid=1, run_span=7,
    monotonic_ns=5, unix_ns=9,
)  # fmt: skip


NO_MEMORY = """
import resource, sys
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.journal.journal_writer import Journal
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20),) * 2)
meta = JournalMeta(run_id="r", run_name="n", run_folder="/nowhere", service="s", host="h", pid=1,
                   run_span=7, monotonic_ns=5, unix_ns=9)
try:
    Journal(sys.argv[1], 1 << 18, meta)
except JournalError as error:
    print(error)
"""


@pytest.mark.fault("F29")
def test_no_memory_for_a_journal_leaves_no_file(tmp_path: Path) -> None:
    """A process that may not map so much is told what to do, and nothing stays."""
    done = subprocess.run(
        [sys.executable, "-c", NO_MEMORY, str(tmp_path / "a.journal")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "Cannot allocate memory; free space, or set OTEL_MLPERF_JOURNAL_ROWS" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def pair(tmp_path: Path):
    writer = Journal(str(tmp_path / "a.journal"), 2048, META)
    reader = JournalReader(writer.path, writer.buffer)
    yield writer, reader
    reader.close()
    writer.release()


@pytest.mark.fault("F29")
def test_memory_that_others_hold_is_given_up_all_the_same(tmp_path: Path) -> None:
    """A tool that keeps our variables keeps the memory, and not the lock that says we are alive."""
    journal = Journal(str(tmp_path / "a.journal"), 2048, META)
    kept = memoryview(journal.buffer)
    before = open_files()
    journal.release()

    assert (before - open_files())[journal.path] == 1
    kept.release()


def put(journal: Journal, span: int) -> bool:
    return journal.put(1, 2, span, 0, span, 3, OTHER, Kind.SECTION)


def test_reader_knows_who_wrote(pair) -> None:
    """The metadata that the writer was given comes out of the file unchanged."""
    _writer, reader = pair

    assert reader.meta == META


def test_rows_come_out_once_and_in_order(pair) -> None:
    """Every row is read exactly once, in the order of writing."""
    writer, reader = pair
    for span in range(1, 11):
        put(writer, span)

    first = reader.take()["span"].tolist()
    put(writer, 11)

    assert (first, reader.take()["span"].tolist()) == (list(range(1, 11)), [11])


def test_full_ring_drops_the_newest_and_counts(pair) -> None:
    """With nobody reading, the first rows stay and each further one is counted."""
    writer, reader = pair
    kept = [put(writer, span) for span in range(1, 3001)]

    assert kept == [True] * 2048 + [False] * 952
    assert reader.word(Word.LOST_RING_FULL) == 952
    assert reader.take()["span"].tolist() == list(range(1, 2049))


def test_freed_slots_are_written_again(pair) -> None:
    """Moving the tail makes room for as many rows as were read."""
    writer, reader = pair
    seen = []
    for span in range(1, 10_001):
        put(writer, span)
        if span % 1500 == 0:
            seen += reader.take()["span"].tolist()
            reader.free()
    seen += reader.take()["span"].tolist()

    assert seen == list(range(1, 10_001))
    assert reader.word(Word.LOST_RING_FULL) == 0


def test_hole_is_read_past_and_filled_late(pair) -> None:
    """A slot drawn but not stored holds nothing up, and its row counts when it comes."""
    writer, reader = pair
    put(writer, 1)
    slot = writer.draw()
    put(writer, 3)
    early = reader.take()["span"].tolist()
    reader.free()
    tail = reader.word(Word.TAIL)
    writer.lease.take = iter([slot]).__next__
    put(writer, 2)

    assert (early, tail, reader.take()["span"].tolist()) == ([1, 3], slot, [2])


def test_old_hole_is_given_up(pair) -> None:
    """A hole behind three quarters of the ring no longer keeps the tail back."""
    writer, reader = pair
    writer.draw()
    for span in range(1, 1700):
        put(writer, span)
    reader.take()
    reader.free()

    assert reader.word(Word.TAIL) == reader.ring.next


def test_reader_is_pressed_by_a_tenth_of_a_ring_and_by_the_end(pair) -> None:
    """A glance tells rows that wait for long from those that must be read soon; so does an end."""
    writer, reader = pair
    for span in range(1, 150):
        put(writer, span)
    calm = reader.is_pressing
    for span in range(150, 300):
        put(writer, span)
    filling = reader.is_pressing
    reader.take()
    taken = reader.is_pressing
    writer.close()

    assert (calm, filling, taken, reader.is_pressing) == (False, True, False, True)


def test_reader_is_pressed_past_a_hole(tmp_path: Path) -> None:
    """A slot that nobody stored does not hide a ring that fills up."""
    writer = Journal(str(tmp_path / "b.journal"), 2048, META)
    reader = JournalReader(writer.path, writer.buffer)
    for span in range(1, 1500):
        if span == 1 + 2048 // 10:
            writer.draw()
        put(writer, span)

    assert reader.is_pressing
    reader.close()
    writer.release()


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=300) | st.integers(-(2**63), 2**63)))
@settings(max_examples=60)
def test_payload_survives(tmp_path_factory, content) -> None:
    """What fits MessagePack comes back equal, over as many rows as it takes."""
    writer = Journal(str(tmp_path_factory.mktemp("j") / "a.journal"), 2048, META)
    reader = JournalReader(writer.path, writer.buffer)
    kept = writer.payload(42, {"a": content})
    put(writer, 42)
    parts = PayloadParts()
    parts.feed(rows_of_kind(reader.take(), Kind.PAYLOAD))

    try:
        expected = msgspec.msgpack.decode(msgspec.msgpack.encode(content))
    except (UnicodeEncodeError, OverflowError):
        assert not kept
        assert reader.word(Word.LOST_PAYLOADS) == 1
    else:
        assert parts.pop(42) == {"a": expected}
    reader.close()
    writer.release()


def test_entries_are_registered_once_and_bounded(pair) -> None:
    """A number stands for what was registered; beyond the room it is OTHER, counted."""
    writer, reader = pair
    numbers = [writer.entry(["section", f"name {i}", "other", "train", {}]) for i in range(600)]
    entries = reader.new_entries()

    assert entries[OTHER][1] == "other"
    given_out = [n for n in numbers if n != OTHER]
    assert [entries[n][1] for n in given_out] == [f"name {i}" for i in range(len(given_out))]
    assert reader.word(Word.LOST_ENTRIES) == numbers.count(OTHER) > 0


def test_cells_hold_exact_values(pair) -> None:
    """A cell is the eight words that its owner stored, under its entry's number."""
    writer, reader = pair
    number = writer.entry(["cell", "counter", "tokens", ""])
    word = writer.cell(number)
    writer.floats[word + 1] = 2.5

    cell = reader.cells()[0]
    assert cell[0] == number
    assert cell.view(np.float64)[1] == 2.5


def test_existing_file_is_not_overwritten(pair) -> None:
    """A second journal of the same name is refused, naming the file."""
    writer, _ = pair

    with pytest.raises(JournalError, match="File exists"):
        Journal(writer.path, 2048, META)


STARTS_WELL = struct.pack("<Q", MAGIC).ljust(META_AT, b"\0")


@pytest.mark.parametrize(
    "damage",
    [b"", b"x" * 100, b"\0" * 9000, b"\0" * 9001, STARTS_WELL.ljust(9000, b"\0"),
     STARTS_WELL + b"\2\0\0\0\xa1\xff" + bytes(8000 - 6)],
    ids=["empty", "short", "zeros", "odd size", "no metadata", "no text"],
)  # fmt: skip
def test_what_is_no_journal_is_refused(tmp_path: Path, damage: bytes) -> None:
    """A file that is none is an error that names it, and is not held open."""
    path = tmp_path / "bad.journal"
    path.write_bytes(damage)

    for _ in range(3):
        with pytest.raises(JournalError, match=r"bad\.journal"):
            JournalReader(str(path))

    held = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert str(path) not in held


def test_torn_payload_hurts_no_other(pair) -> None:
    """A payload that ends within a letter is left out; the next one is read."""
    writer, reader = pair
    writer.put_payload(5, _pieces(b"\x81\xa1a\xa1\xff"))
    writer.payload(6, {"x": 1})
    parts = PayloadParts()
    parts.feed(reader.take())

    assert parts.ready == {6: {"x": 1}}
    assert parts.damaged == 1


def fork_writer(path: str, threads: int, ready: int) -> None:
    journal = Journal(path, 2048, META)

    def work(base: int) -> None:
        span = base
        while True:
            span += 1
            put(journal, span)

    for i in range(threads):
        threading.Thread(target=work, args=(i << 32,), daemon=True).start()
    os.write(ready, b"!")
    threading.Event().wait(60)


@pytest.mark.fault("F21")
def test_killed_writer_leaves_whole_rows(tmp_path: Path) -> None:
    """After SIGKILL each thread's rows have no gap but counted drops, none twice, none torn."""
    for round_ in range(6):
        path = str(tmp_path / f"{round_}.journal")
        started, ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            fork_writer(path, 3, ready)
            os._exit(0)
        os.read(started, 1)
        reader = JournalReader(path)
        taken = []
        while sum(map(len, taken)) < 5000:
            taken.append(reader.take())
            reader.free()
        assert reader.is_owned
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert not reader.is_owned
        taken.append(reader.take(final=True))
        rows = np.concatenate(taken)

        assert len(np.unique(rows["span"])) == len(rows)
        assert (rows["start"] == 1).all()
        assert (rows["root"] == rows["span"]).all()
        spans = [rows["span"][rows["span"] >> 32 == i] for i in range(3)]
        highest = sum(int(s.max(initial=i << 32)) - (i << 32) for i, s in enumerate(spans))
        drawn_not_stored = len(reader.ring.holes)
        missing = highest - len(rows)
        assert missing <= reader.word(Word.LOST_RING_FULL) + drawn_not_stored
        reader.close()
        os.close(started)
        os.close(ready)


def test_closing_a_full_ring_loses_nothing(pair) -> None:
    """The last slot is named although there is no room to mark it, and no loss is counted."""
    writer, reader = pair
    for span in range(1, 2049):
        put(writer, span)
    head = writer.close()

    assert head == 2048
    assert not any(reader.word(word) for word in Word if word.name.startswith("LOST"))


def two_looks(reader) -> None:
    reader.ring = RingScan(reader.ring._ring, in_order=False)


def test_weakly_ordered_reader_reads_a_burst_in_two_looks(pair) -> None:
    """What the second look sees is read, however much it is."""
    writer, reader = pair
    two_looks(reader)
    for span in range(1, 2001):
        put(writer, span)

    assert [len(reader.take()), len(reader.take()), len(reader.take())] == [0, 2000, 0]


def test_weakly_ordered_reader_looks_twice_at_a_late_row(pair) -> None:
    """A hole that is filled counts from the second look that sees it, too."""
    writer, reader = pair
    two_looks(reader)
    slot = writer.draw()
    put(writer, 2)
    early = [len(reader.take()), len(reader.take())]
    writer.lease.take = iter([slot]).__next__
    put(writer, 1)

    assert early == [0, 1]
    assert [reader.take()["span"].tolist(), reader.take()["span"].tolist()] == [[], [1]]


@pytest.mark.parametrize("word", [Word.ROWS, Word.CELLS, Word.OPEN, Word.CHUNKS])
def test_shape_is_that_of_the_files_size(pair, word) -> None:
    """Words that somebody has written over do not move the parts of a journal."""
    writer, _ = pair
    put(writer, 42)
    writer.words[word] = 3
    reader = JournalReader(writer.path, writer.buffer)

    assert reader.take()["span"].tolist() == [42]
    reader.close()


def test_tail_that_was_written_over_frees_nothing(pair) -> None:
    """No unread row is written over; once the reader has set it right there is room again."""
    writer, reader = pair
    writer.words[Word.TAIL] = 1 << 40
    rows = writer.shape.rows
    stored = [put(writer, span) for span in range(1, rows + 6)]

    assert stored == [True] * rows + [False] * 5
    assert reader.take()["span"].tolist() == list(range(1, rows + 1))
    reader.free()
    assert put(writer, 7)


@pytest.mark.parametrize("place", [0, 3, 2047])
def test_newest_rows_are_found_beside_one_that_was_written_over(pair, place) -> None:
    """A number that is far from all others is none of the ring."""
    writer, reader = pair
    for span in range(1, 10):
        put(writer, span)
    writer.words[(writer.shape.ring_at >> 3) + place * 8 + 7] = (1 << 64) - 1

    assert reader.ring.newest(5)["span"].tolist() == [5, 6, 7, 8, 9]


@pytest.mark.fault("F94")
@pytest.mark.parametrize("state", [0, State.CLOSED, 3, (1 << 64) - 1])
def test_a_state_that_was_written_over_ends_nothing(pair, state) -> None:
    """The journal is in use until its process closes it, and is closed then."""
    writer, reader = pair
    writer.words[Word.STATE] = state
    put(writer, 1)
    before = reader.take()["span"].tolist(), reader.is_closed, reader.is_running
    put(writer, 2)
    head = writer.close()

    assert before == ([1], False, True)
    assert reader.take()["span"].tolist() == [2, 0]
    assert (head, reader.word(Word.HEAD), reader.is_closed, reader.is_running) == (
        3, 3, True, False
    )  # fmt: skip


@pytest.mark.fault("F94")
def test_what_a_process_says_in_its_header_is_said_again(tmp_path: Path) -> None:
    """Words that were written over are right again at its next look, and at its end."""
    writer = Journal(str(tmp_path / "a.journal"), 2048, META)
    for span in range(2051):
        put(writer, span)
    parts = [slice(0, Word.STEP * WORD), slice(Word.END_TIME * WORD, (Word.META_CHECK + 1) * WORD),
             slice(META_AT, HEADER_BYTES - 8)]  # fmt: skip
    whole = [bytes(writer.buffer[part]) for part in parts]
    for part in parts:
        writer.buffer[part] = b"\7" * (part.stop - part.start)
    writer.rewrite_header()
    reader = JournalReader(writer.path, writer.buffer)

    assert [bytes(writer.buffer[part]) for part in parts[:2]] == whole[:2]
    assert (reader.meta, reader.word(Word.LOST_RING_FULL)) == (META, 3)
    reader.close()
    writer.release()


@pytest.mark.fault("F94")
def test_more_was_never_lost_than_there_was_time_for(tmp_path: Path) -> None:
    """A counter that was written over says nothing; one that can be is believed."""
    meta = msgspec.structs.replace(META, monotonic_ns=time.monotonic_ns())
    writer = Journal(str(tmp_path / "a.journal"), 2048, meta)
    reader = JournalReader(writer.path, writer.buffer)
    writer.words[Word.LOST_RING_FULL] = 1 << 47
    absurd = reader.counted([Word.LOST_RING_FULL])
    writer.words[Word.LOST_RING_FULL] = 1 << 16

    assert absurd == {}
    assert reader.counted([Word.LOST_RING_FULL]) == {Word.LOST_RING_FULL: 1 << 16}
    reader.close()
    writer.release()
