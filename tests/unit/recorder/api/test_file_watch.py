"""Reading and writing of files are recorded on request, and files stay what they are."""

from __future__ import annotations

import builtins
import io
import os
import pathlib

import pytest
from cell_values import series

import otel_mlperf as om
from otel_mlperf import names

DATA = b"one\ntwo\nthree\n" * 1000
GIVEN = builtins.open


@pytest.fixture
def watched(recording):
    """A run in which files are watched."""
    with om.watch_files():
        yield recording


def moved(recording):
    """Bytes by direction."""
    labels = {
        ((names.DISK_DIRECTION, direction),): direction
        for direction in (names.FILE_READ, names.FILE_WRITE)
    }
    counted = series(recording, "counter")
    return {
        labels[pairs]: value
        for (name, pairs), value in counted.items()
        if name == names.FILE_IO.name
    }


def added_up(recording):
    """Calls of the sections."""
    return {
        content[1]: sum(cell[0] for cell in cells)
        for content, cells in recording.cells().items()
        if content[0] == "aggregate"
    }


def test_bytes_and_calls(watched, tmp_path):
    """What reached the kernel: a buffer of the program's own size costs as many calls."""
    path = tmp_path / "data"
    with open(path, "wb", 4096) as file:
        for _ in range(3):
            file.write(b"x" * 4096)
    assert path.read_bytes() == b"x" * 12288

    assert moved(watched) == {"read": 12288, "write": 12288}
    calls = added_up(watched)
    assert set(calls) == {names.SPAN_FILE_READ, names.SPAN_FILE_WRITE}
    assert calls[names.SPAN_FILE_WRITE] == 3


def test_where_it_was(watched, tmp_path):
    """The section around has it inside."""
    (tmp_path / "data").write_bytes(DATA)
    with om.span("decode"):
        (tmp_path / "data").read_bytes()

    enclosing = {
        content[3]
        for content in watched.cells()
        if content[:2] == ("aggregate", names.SPAN_FILE_READ)
    }
    assert enclosing == {"decode"}


@pytest.mark.parametrize("mode", ["r", "rb", "r+", "r+b", "a", "ab", "w", "wb+", "wt", "a+"])
def test_files_are_as_without(watched, tmp_path, mode):
    """Of the same classes, with the same names, modes and content."""
    files = []
    for give, name in ((open, "ours"), (GIVEN, "theirs")):
        path = tmp_path / name
        path.write_bytes(DATA)
        file = give(path, mode)
        about = [type(file), file.mode, file.readable(), file.writable(), file.tell()]
        about += [file.encoding, file.errors, file.line_buffering] if "b" not in mode else []
        if file.readable():
            file.seek(0)
            about += [file.readline(), file.read(7), next(iter(file), None), len(file.read())]
        if file.writable():
            about.append(file.write("new\n" if "b" not in mode else b"new\n"))
        assert file.name == str(path)
        file.close()
        files.append([*about, file.closed, path.read_bytes()])

    assert files[0] == files[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("nowhere/at/all",), ("here", "x"), ("here", "rq"), ("here", "rw"), ("here", "r", 0),
        ("here", "rb", -1, "utf-8"), ("here", 3), (None,), (".", "r"), ("here", "r", -1, "no-such"),
    ],
)  # fmt: skip
def test_errors_are_the_same(watched, tmp_path, monkeypatch, arguments):
    """Of what is not there, and of what cannot be meant."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").touch()
    said = []
    for give in (open, GIVEN):
        with pytest.raises((OSError, ValueError, TypeError, LookupError)) as caught:
            give(*arguments)
        said.append((caught.type, str(caught.value)))

    assert said[0] == said[1]


def test_other_ways_to_open_are_left_alone(watched, tmp_path):
    """By number, or with an opener: they work as ever."""
    path = tmp_path / "data"
    path.write_bytes(DATA)
    with open(os.open(path, os.O_RDONLY), "rb") as file:
        assert type(file.raw) is io.FileIO
    with open(path, "rb", opener=os.open) as file:
        assert file.read() == DATA
    with open(path, "rb", 0) as raw:
        assert (isinstance(raw, io.FileIO), raw.read()) == (True, DATA)


def test_off_by_default_and_again(recording, tmp_path):
    """``open`` is Python's own before and after; two watches end with the second."""
    assert builtins.open is io.open is GIVEN
    first, second = om.watch_files(), om.watch_files()
    first.stop()
    first.stop()
    assert builtins.open is not GIVEN
    second.stop()
    assert builtins.open is io.open is GIVEN
    (tmp_path / "data").write_bytes(DATA)

    assert moved(recording) == {}


def test_without_a_run_files_are_pythons_own(tmp_path):
    """Nothing would be recorded."""
    (tmp_path / "data").write_bytes(DATA)
    with om.watch_files(), open(tmp_path / "data", "rb") as file:
        assert type(file.raw) is io.FileIO


def test_open_as_an_attribute_of_a_class(watched, tmp_path):
    """A function would become a method there; and paths open by it."""

    class Reads:
        opens = open

    (tmp_path / "data").write_text("text")
    with Reads().opens(tmp_path / "data") as file:
        assert file.read() == "text"
    assert pathlib.Path(tmp_path / "data").read_text() == "text"
