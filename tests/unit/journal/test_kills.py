"""Rows of threads and of a forked child are stored once and complete, after each was killed."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import signal
import threading
import time
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
from journal_model import META

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.journal_writer import Journal
from otel_mlperf.journal.layout import OPEN, OTHER, Kind, Word

if TYPE_CHECKING:
    from pathlib import Path

THREADS = 3
MANY = 1 << 17
"""Rows, as by default: with few of them, threads that wait for the GIL are given up."""


def record(journal: Journal, thread: int, begun: memoryview, ended: memoryview) -> None:
    """Sections without end, each counted before it opens and after its row is written."""
    for number in itertools.count(1):
        span = thread << 32 | number
        begun[thread] = number
        at = journal.free.pop()
        OPEN.pack_into(journal.buffer, at, span, span ^ 5, span ^ 6, thread, 123, OTHER)
        journal.put(1, 2, span, span ^ 5, span ^ 6, thread, OTHER, Kind.SECTION)
        ended[thread] = number
        journal.words[at >> 3] = 0
        journal.free.append(at)


def record_and_fork(folder: Path, counts: list[memoryview], ready: int) -> None:
    """Threads that record; in the midst of it a child that records into its own journal."""
    warnings.simplefilter("ignore")  # newer Pythons warn of a fork beside threads: it is the test
    journal = Journal(str(folder / "parent.journal"), MANY, META)
    for thread in range(1, THREADS):
        threading.Thread(target=record, args=(journal, thread, *counts[:2]), daemon=True).start()
    child = os.fork()
    if child == 0:
        journal = Journal(str(folder / "child.journal"), MANY, META)
        os.write(ready, os.getpid().to_bytes(4, "little"))
        record(journal, 0, *counts[2:])
    record(journal, 0, *counts[:2])


def check_rows(
    rows: np.ndarray, reader: JournalReader, begun: memoryview, ended: memoryview
) -> None:
    """What a killed process recorded is there, once and whole, or counted as dropped."""
    spans = rows["span"]
    assert len(np.unique(spans)) == len(spans)
    assert (rows["parent"] == spans ^ np.uint64(5)).all()
    assert (rows["root"] == spans ^ np.uint64(6)).all()
    assert (rows["track"] == spans >> np.uint64(32)).all()
    missing = under_way = 0
    for thread in range(THREADS):
        mine = spans[rows["track"] == thread] & np.uint64(0xFFFFFFFF)
        assert mine.max(initial=0) <= begun[thread] <= ended[thread] + 1
        missing += ended[thread] - int((mine <= ended[thread]).sum())
        under_way += begun[thread] - ended[thread]
    assert missing <= reader.word(Word.LOST_RING_FULL) <= missing + under_way


def check_open(rows: np.ndarray, reader: JournalReader, begun: memoryview) -> None:
    """What was open is what each thread was in, or had just left."""
    open_ = reader.open_sections()["span"].tolist()
    assert len(open_) <= THREADS
    without_row = set(open_) - set(rows["span"].tolist())
    assert without_row <= {thread << 32 | begun[thread] for thread in range(THREADS)}


def wait_for(path: Path) -> JournalReader:
    """A reader of a journal that a process is making."""
    while True:
        with contextlib.suppress(JournalError):
            return JournalReader(str(path))


def read_some(readers: list[JournalReader], taken: list[list[np.ndarray]]) -> None:
    """Reads until each journal has been round once."""
    while min(sum(map(len, found)) for found in taken) < MANY:
        for reader, found in zip(readers, taken, strict=True):
            found.append(reader.take())
            reader.free()


@pytest.mark.fault("F21", "F25")
@pytest.mark.parametrize("round_", range(3))
def test_killed_processes_leave_what_they_recorded(tmp_path: Path, round_: int) -> None:
    """Of threads and a forked child, killed one after the other, everything is read once."""
    del round_
    shared = mmap.mmap(-1, 4 * 8 * THREADS)
    words = memoryview(shared).cast("Q")
    counts = [words[at * THREADS : (at + 1) * THREADS] for at in range(4)]
    started, ready = os.pipe()
    parent = os.fork()
    if parent == 0:
        with contextlib.suppress(BaseException):
            record_and_fork(tmp_path, counts, ready)
        os._exit(1)
    child = int.from_bytes(os.read(started, 4), "little")
    readers = [wait_for(tmp_path / name) for name in ("parent.journal", "child.journal")]
    taken: list[list[np.ndarray]] = [[], []]
    try:
        read_some(readers, taken)
    finally:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        still_owned = readers[1].is_owned
        os.kill(child, signal.SIGKILL)
    assert not readers[0].is_owned  # the child had inherited the descriptor, but not the lock
    assert still_owned
    while readers[1].is_owned:  # it is not our child: nobody here can wait for it
        time.sleep(0.001)
    for reader, found, (begun, ended) in zip(readers, taken, (counts[:2], counts[2:]), strict=True):
        found.append(reader.take(final=True))
        rows = np.concatenate(found)
        check_rows(rows, reader, begun, ended)
        check_open(rows, reader, begun)
        reader.close()
    for end in (started, ready):
        os.close(end)
