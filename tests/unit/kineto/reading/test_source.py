"""Regular files are read up to the limits, and damage of them is reported."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys

import pytest
from kineto_traces import event, trace_text, training_step, write_trace
from open_files import open_files

from otel_mlperf.errors import TraceError
from otel_mlperf.kineto.reading.source import PIECE_BYTES
from otel_mlperf.kineto.reading.trace_reader import read_trace

TEXT = trace_text(training_step()).encode()
PACKED = gzip.compress(TEXT)
HALF = len(TEXT) // 2


def corrupt(data, place):
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


@pytest.fixture
def read(tmp_path):
    def read_bytes(data, **options):
        path = tmp_path / "trace.json.gz"
        path.write_bytes(data)
        return read_trace(path, **options)

    return read_bytes


@pytest.mark.fault("F88")
@pytest.mark.parametrize(
    ("data", "damage"),
    [
        (TEXT, {}),
        (PACKED, {}),
        (PACKED + bytes(512), {}),
        (gzip.compress(TEXT[:HALF]) + gzip.compress(TEXT[HALF:]), {}),
        (PACKED + b"xyz", {"trailing_bytes": 1}),
        (PACKED[:-5], {"truncated": 1}),
        (PACKED[:-8] + bytes(4) + PACKED[-4:], {"bad_checksum": 1}),
        (PACKED[:-4] + bytes(4), {"bad_checksum": 1}),
        (corrupt(gzip.compress(TEXT[:HALF]), -6) + gzip.compress(TEXT[HALF:]), {"bad_checksum": 1}),
    ],
    ids=[
        "plain text whatever its name",
        "gzip",
        "padding",
        "two members",
        "bytes after the last member",
        "a cut checksum",
        "a wrong checksum",
        "a wrong length",
        "a wrong checksum before another member",
    ],
)
def test_all_of_the_text_is_read(read, data, damage):
    """Gzip is told by content; what is wrong around the compressed text costs none of it."""
    trace = read(data)

    assert len(trace.events) == 8
    assert {item.kind: item.occurrences for item in trace.damage} == damage


@pytest.mark.fault("F88")
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_cut_gzip_file_keeps_what_was_before_the_cut(tmp_path, share):
    """The events whose compressed bytes are there are read."""
    entries = [event(f"op_{row % 37}", row * 1.25, 1) for row in range(20_000)]
    path = write_trace(tmp_path / "trace.json.gz", entries)
    packed = path.read_bytes()
    path.write_bytes(packed[: int(len(packed) * share)])

    trace = read_trace(path)

    assert share * 0.9 < len(trace.events) / 20_000 < share * 1.1
    assert {damage.kind for damage in trace.damage} == {"truncated"}


@pytest.mark.fault("F88")
def test_corrupt_compression_keeps_what_was_before_it(tmp_path):
    """Bytes changed in the middle end the text there at the earliest."""
    entries = [event(f"op_{row % 37}", row * 1.25, 1) for row in range(20_000)]
    path = write_trace(tmp_path / "trace.json.gz", entries)
    packed = bytearray(path.read_bytes())
    middle = len(packed) // 2
    packed[middle : middle + 64] = b"\xff" * 64
    path.write_bytes(packed)

    trace = read_trace(path)

    assert len(trace.events) > 9000
    assert trace.damage != []


@pytest.mark.fault("F88", "S15")
def test_a_bomb_is_left_early(tmp_path):
    """200 MiB in 200 kB are read up to the cap, in little memory; what was before it is kept."""
    head, tail = TEXT.split(b"},\n  {", 1)
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(head + b"},\n  {")
        for _ in range(200):
            file.write(b" " * (1 << 20))
        file.write(tail)
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from otel_mlperf.kineto.reading.trace_reader import read_trace\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "trace = read_trace(Path(sys.argv[1]))\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(len(trace.events), [d.kind for d in trace.damage], grown < 32 << 10)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )

    assert path.stat().st_size < 300_000
    assert done.stdout.split(" ", 1)[0] == "1"
    assert "expands_too_much" in done.stdout
    assert done.stdout.endswith("True\n")


@pytest.mark.fault("F88", "S15")
def test_no_more_than_the_cap_is_read(read):
    """``max_bytes`` holds for the text, however it is packed, and is counted where it ends."""
    for data in (TEXT, PACKED):
        trace = read(data, max_bytes=1500)
        assert [(item.kind, item.offset) for item in trace.damage if item.kind == "too_large"] == [
            ("too_large", 1500)
        ]
        assert len(trace.events) == TEXT[:1500].count(b'"ph": "X"') - 1


@pytest.mark.fault("F90")
def test_a_file_that_grows_is_read_as_far_as_it_was(tmp_path):
    """Bytes that are appended while reading are left alone, and it is said that there are some."""
    path = tmp_path / "trace.json"
    text = trace_text([event(f"op_{row}", row, 1) for row in range(20_000)]).encode()
    assert len(text) > 2 * PIECE_BYTES
    path.write_bytes(text)
    grown = []

    def grow(_):
        if not grown:
            with path.open("ab") as file:
                grown.append(file.write(b"more"))

    trace = read_trace(path, progress=grow)

    assert len(trace.events) == 20_000
    assert [(item.kind, item.offset) for item in trace.damage] == [("file_changed", len(text))]


@pytest.mark.fault("F90")
def test_a_file_that_shrinks_is_read_as_far_as_it_is(tmp_path):
    """A file that is cut while it is read gives the events that were read."""
    path = tmp_path / "trace.json"
    path.write_bytes(trace_text([event(f"op_{row}", row, 1) for row in range(20_000)]).encode())

    trace = read_trace(path, progress=lambda _: os.truncate(path, 1000))

    assert 0 < len(trace.events) < 20_000
    # Where it is cut just behind an event's comma or in the middle of one is the reader's pace.
    assert {item.kind for item in trace.damage} - {"unreadable_event"} == {
        "file_changed",
        "truncated",
    }


@pytest.mark.fault("F90", "S15")
def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    """A FIFO that nobody writes, a device without end and a directory are errors, not waits."""
    fifo = tmp_path / "fifo.json"
    os.mkfifo(fifo)
    for path, found in (
        (fifo, "it is a FIFO"),
        (tmp_path, "it is a directory"),
        (type(tmp_path)("/dev/zero"), "it is a device"),
        (tmp_path / "missing.json", "No such file"),
        (tmp_path / "a\0b", "null byte"),
    ):
        with pytest.raises(TraceError, match=found):
            read_trace(path)


def test_nothing_stays_open(tmp_path):
    """Reading and failing to read leave no file descriptor behind."""
    good = write_trace(tmp_path / "good.json.gz", training_step())
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"no trace")
    before = open_files()

    for _ in range(3):
        read_trace(good)
        with pytest.raises(TraceError):
            read_trace(bad)

    assert not open_files() - before


def test_progress_ends_at_the_size_of_the_file(tmp_path):
    """Progress counts bytes of the file itself, never back, up to all of them."""
    path = write_trace(tmp_path / "trace.json.gz", [event("op", row, 1) for row in range(20_000)])
    told = []

    read_trace(path, progress=told.append)

    assert told == sorted(told)
    assert told[-1] == path.stat().st_size
    assert len(told) > 3
