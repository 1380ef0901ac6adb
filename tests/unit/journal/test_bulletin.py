"""The agent's bulletin to the processes is always complete, and read as it was written."""

from __future__ import annotations

import threading

import pytest

from otel_mlperf.journal.bulletin import (
    FILE,
    Group,
    Published,
    Reading,
    RunWarning,
    drop_readings,
    read_readings,
    write_readings,
)

READING = Reading("0-1-1.journal", "process.memory.usage", {"ml.process.role": "main"}, 7.0)
WARNED = RunWarning("DiskFull", "", {"m": "/"}, 0.99, 5, "the disk is full", "make room")


def test_what_is_written_is_read(tmp_path):
    """Readings by source with their time, and warnings, come back as they were."""
    write_readings(str(tmp_path), {"process": Group(42, [READING])}, [WARNED])

    assert read_readings(str(tmp_path)) == Published({"process": Group(42, [READING])}, [WARNED])
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "content", [None, b"", b"\x93", b"{}", b"\x80", b"\x92\x81\xa1\xff\x90\x90"]
)
def test_what_cannot_be_read(tmp_path, content):
    """Without a file, or with one of another version, there are no readings."""
    if content is not None:
        (tmp_path / FILE).write_bytes(content)

    assert read_readings(str(tmp_path)) is None


def test_reader_sees_no_part(tmp_path):
    """Whoever reads while it is written sees one state or the next."""
    states = [{"host": Group(n, [READING] * n)} for n in (1, 200)]
    write_readings(str(tmp_path), states[0], [])
    is_over = threading.Event()

    def write():
        while not is_over.is_set():
            for state in states:
                write_readings(str(tmp_path), state, [])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = [read_readings(str(tmp_path)) for _ in range(500)]
    finally:
        is_over.set()
        thread.join()

    assert {found.groups["host"].monotonic_ns for found in seen} <= {1, 200}
    assert all(len(found.groups["host"].readings) in (1, 200) for found in seen)


def test_it_is_taken_away(tmp_path):
    """What is dropped is gone; dropping again does nothing."""
    write_readings(str(tmp_path), {}, [])
    for _ in range(2):
        drop_readings(str(tmp_path))

    assert list(tmp_path.iterdir()) == []
