"""A journal can be inspected without consuming anything, and without leaving a trace."""

from __future__ import annotations

import subprocess
import sys

import pytest
from by_hand import Program

from otel_mlperf import names
from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Kind, State, Word
from otel_mlperf.journal.ring_scan import rows_of_kind

HOLDER = """
import sys
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.journal.journal_writer import Journal
meta = JournalMeta(run_id="r", run_name="r", run_folder="/", service="r", host="n", pid=1,
                   run_span=1, monotonic_ns=0, unix_ns=0)
journal = Journal(sys.argv[1], 2048, meta)
print("ready", flush=True)
sys.stdin.readline()
journal.close()
print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def program(tmp_path):
    """A program that records into a journal of 16,384 rows."""
    program = Program(tmp_path, tmp_path)
    yield program
    program.journal.release()


@pytest.fixture
def path(tmp_path, program):
    """Its file."""
    return tmp_path / "0-1-1.journal"


def test_what_is_seen_is_what_was_written(program, path):
    """Rows in their order, what numbers stand for, and what is open."""
    spans = [program.step(start) for start in (0, 10, 20)]
    program.open("forward", 31)
    journal = JournalReader(str(path), is_writable=False)
    entries = journal.new_entries()

    sections = rows_of_kind(journal.ring.newest(1000), Kind.SECTION)
    steps = sections[sections["span"] == sections["root"]]
    (inner,) = journal.open_sections()
    assert steps["span"].tolist() == spans
    assert entries[int(steps["name"][0])][1:4] == ["train.step", names.STEP, names.TRAIN]
    assert entries[int(inner["name"])][1] == "forward"
    assert journal.meta.run_name == "digits"
    journal.close()


def test_looking_changes_no_byte(program, path):
    """The agent finds the journal as if nobody had looked."""
    program.step(0)
    before = path.read_bytes()
    journal = JournalReader(str(path), is_writable=False)
    journal.ring.newest(1000)
    journal.open_sections()
    journal.close()

    assert path.read_bytes() == before


def test_it_cannot_write(path):
    """The file is mapped for reading: a mistake here raises instead of harming the program."""
    journal = JournalReader(str(path), is_writable=False)

    with pytest.raises(TypeError, match="read-only"):
        journal.set_word(Word.TAIL, 7)
    journal.close()


def test_rows_that_the_agent_has_freed_are_still_seen(program, path):
    """The newest rows are there whether or not somebody has read them."""
    reader = JournalReader(str(path))
    for start in range(40):
        program.step(start)
    reader.take()
    reader.free()
    journal = JournalReader(str(path), is_writable=False)

    assert len(journal.ring.newest(12)) == 12
    assert journal.ring.newest(12)["seq"].tolist() == list(range(150, 162))
    journal.close()
    reader.close()


def test_of_a_ring_that_went_round_the_newest_rows_are_seen(program, path):
    """Rows that were written over are not; the others are in order, without a gap."""
    reader = JournalReader(str(path))
    for start in range(6000):  # of four rows each, in a ring of 16,384
        program.step(start)
        if start % 1000 == 0:
            reader.take()
            reader.free()
    journal = JournalReader(str(path), is_writable=False)

    seen = journal.ring.newest(1 << 20)["seq"]
    assert len(seen) == 1 << 14
    assert (seen[1:] - seen[:-1] == 1).all()
    assert int(seen[-1]) == 1 + 4 * 6000
    journal.close()
    reader.close()


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(8192), b"odd" * 4097])
def test_what_is_no_journal_is_said(tmp_path, content):
    """The error names the file."""
    path = tmp_path / "0-1-1.journal"
    path.write_bytes(content)

    with pytest.raises(JournalError, match=r"0-1-1\.journal"):
        JournalReader(str(path), is_writable=False)


def test_a_journal_that_has_gone_is_said(tmp_path):
    """Its process may end between the list of files and the look."""
    with pytest.raises(JournalError, match="No such file"):
        JournalReader(str(tmp_path / "0-1-1.journal"), is_writable=False)


def test_a_process_runs_while_it_holds_its_journal_open(tmp_path):
    """Running until it closes the journal; looking takes nothing from its lock."""
    path = tmp_path / "0-1-1.journal"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout.readline() == "ready\n"
        looks = [JournalReader(str(path), is_writable=False) for _ in range(2)]
        assert looks[0].is_running
        looks[0].close()
        assert looks[1].is_running
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "closed\n"
        assert not looks[1].is_running
        assert looks[1].word(Word.STATE) == State.CLOSED
        looks[1].close()
        holder.stdin.write("\n")
