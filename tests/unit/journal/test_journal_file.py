"""A journal whose file is removed continues as if nothing had happened."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from by_hand import Program

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.journal.ring_scan import rows_of_kind


@pytest.fixture
def program(tmp_path):
    """A program that records into a journal of 16,384 rows."""
    program = Program(tmp_path, tmp_path)
    yield program
    program.journal.release()


def spans_of(path, buffer):
    """What a reader that comes now finds there."""
    reader = JournalReader(path, buffer)
    return rows_of_kind(reader.ring.take(), Kind.SECTION)["span"].tolist()


def file_content(path):
    with open(path, "rb") as file:
        return file.read()


def test_the_new_file_has_all_that_the_old_one_had_and_what_comes(program):
    """Rows, names, open sections and counters are there under the old name, later ones too."""
    journal = program.journal
    before = program.step(0)
    program.open("forward", 11)
    journal.count(Word.LOST_PAYLOADS, 3)
    os.unlink(journal.path)
    assert journal.is_removed

    journal.make_file_again()
    after = program.step(20)

    assert not journal.is_removed
    assert file_content(journal.path) == journal.buffer[:]
    sections = spans_of(journal.path, journal.buffer)
    assert {before, after} < set(sections)
    assert len(sections) == len(set(sections)) == 6
    assert journal.words[Word.LOST_PAYLOADS] == 3


def test_its_process_is_still_its_owner(program):
    """Another process sees the new file locked, and unlocked once the journal is given up."""
    journal = program.journal
    for _ in range(3):
        os.unlink(journal.path)
        journal.make_file_again()
        assert is_owned_for_others(journal.path)
    # The first, which the mapping keeps, and the one before this: no more, however often.
    assert len([fd for fd in os.listdir("/proc/self/fd") if is_deleted(fd, journal.path)]) == 2


def is_owned_for_others(path):
    """What a child process sees: a process does not see locks of its own."""
    child = os.fork()
    if not child:
        os._exit(int(JournalReader(path).is_owned))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def is_deleted(fd, path):
    """Whether the descriptor is of a file of that name which has been removed."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == f"{path} (deleted)"
    except OSError:
        return False


@pytest.mark.fault("F91")
def test_no_row_of_another_thread_is_lost_meanwhile(program):
    """Threads record while the file is removed and made again, many times: every row is there."""
    journal, ended = program.journal, []
    until = threading.Event()
    name = program.name("piece")

    def record(first):
        span = first
        while not until.is_set() and span < first + 4000:
            assert journal.put(1, 2, span, program.run, program.run, 11, name, Kind.SECTION)
            span += 1
        ended.append(range(first, span))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=record, args=(n << 32,)) for n in (1, 2, 3)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(20):
            os.unlink(journal.path)
            journal.make_file_again()
    finally:
        until.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)

    found = spans_of(journal.path, journal.buffer)
    assert sorted(found) == sorted(span for spans in ended for span in spans)
    assert file_content(journal.path) == journal.buffer[:]


def test_without_a_folder_all_is_as_before(program, tmp_path):
    """Where the file cannot be made, that is an error and the journal goes on where it is."""
    journal = program.journal
    os.unlink(journal.path)
    journal.path = str(tmp_path / "gone" / "0-1-1.journal")

    with pytest.raises(JournalError, match="creating the journal"):
        journal.make_file_again()
    program.step(0)

    assert len(spans_of(journal.path, journal.buffer)) == 3
