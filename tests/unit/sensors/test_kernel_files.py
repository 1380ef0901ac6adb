"""Files kept open return their current content, and parsers accept any text."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from open_files import open_files

from otel_mlperf.sensors.kernel_files import (
    KeptFile,
    entries,
    field,
    kibibytes,
    number,
    numbers,
    read_once,
    word,
)


def test_a_kept_file_says_what_is_in_it_now(tmp_path):
    """Each read begins at the beginning, on the descriptor that the first one opened."""
    path = tmp_path / "value"
    path.write_text("one")
    file = KeptFile(path)

    assert file.read() == b"one"
    path.write_text("seven")
    assert file.read() == b"seven"
    file.close()


@pytest.mark.parametrize("size", [0, 2047, 2048, 2049, 1 << 16, 200_001])
def test_a_kept_file_is_read_to_its_end(tmp_path, size):
    """Nothing is cut off, whatever the size."""
    path = tmp_path / "long"
    path.write_bytes(b"x" * size)
    file = KeptFile(path)

    assert file.read() == b"x" * size
    file.close()


def test_long_files_of_the_kernel_are_read_whole():
    """A file that the kernel hands out in pieces has all of its lines."""
    file = KeptFile(Path("/proc/vmstat"))
    text = file.read()
    file.close()

    keys = [line.split()[0] for line in text.splitlines()]
    assert keys == [line.split()[0] for line in Path("/proc/vmstat").read_bytes().splitlines()]


def test_a_file_that_is_not_there_is_empty_until_it_comes(tmp_path):
    """Absence is no error, and not for ever."""
    file = KeptFile(tmp_path / "later")
    assert file.read() == b""
    (tmp_path / "later").write_text("here")

    assert file.read() == b"here"
    file.close()


def test_what_ought_to_be_there_and_is_not_is_said_once(tmp_path, caplog):
    """The log names the file a single time, however often it is read."""
    caplog.set_level("INFO")
    file = KeptFile(tmp_path / "stat", may_lack=False)
    for _ in range(3):
        assert file.read() == b""

    (record,) = caplog.records
    assert str(tmp_path / "stat") in record.getMessage()


def test_a_folder_in_the_place_of_a_file_is_empty(tmp_path):
    """What can be opened but not read is as absent as what cannot be opened."""
    assert KeptFile(tmp_path).read() == b""
    assert read_once(tmp_path) == b""
    assert entries(tmp_path / "none") == []


def test_closing_gives_the_descriptor_back(tmp_path):
    """A closed file holds nothing open, and closing twice does no harm."""
    (tmp_path / "value").write_text("1")
    before = open_files()
    file = KeptFile(tmp_path / "value")
    file.read()
    assert open_files() - before == {str(tmp_path / "value"): 1}
    file.close()
    file.close()

    assert not open_files() - before


def test_the_file_of_a_process_that_ended_is_empty():
    """It never becomes that of another process."""
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    file = KeptFile(Path(f"/proc/{process.pid}/stat"))
    assert file.read().startswith(b"%d (" % process.pid)
    process.communicate()

    assert file.read() == b""


def test_fields_are_found_at_the_beginning_of_lines_only():
    """A key is the whole beginning of its line, not a part of another key."""
    text = b"wide 1\na: 2 kB\nx wide 3\nba: 4 kB\nbig: 5\nempty:\nlast: 7"

    assert field(text, b"wide ") == 1
    assert kibibytes(text, b"a:") == 2048
    assert kibibytes(text, b"ba:") == 4096
    assert field(text, b"last:") == 7
    assert field(text, b"empty:") is None
    assert field(text, b"ide ") is None
    assert word(text, b"none:") == b""


@given(st.binary(max_size=30))
def test_numbers_are_plain_decimals(text):
    """What is a number here is one for everybody; signs, blanks and underscores are not."""
    found = number(text)

    assert (found is None) == (not text.isdigit() or len(text) > 20)
    assert found is None or found == int(text)


@given(
    st.lists(st.binary(min_size=1, max_size=22) | st.from_regex(rb"[0-9]{1,21}", fullmatch=True))
)
def test_several_numbers_are_all_numbers_or_none(words):
    """One word that is something else takes all of them away."""
    found = numbers(words)

    assert found in ([], [int(word) for word in words if word.isdigit()])
    assert len(found) in (0, len(words))


@given(st.binary(max_size=300), st.sampled_from([b"MemTotal:", b"a", b"pgfault "]))
def test_any_text_has_a_field_or_none(text, key):
    """Looking for a field never raises, and what is found stands behind the key."""
    found = field(text, key)

    if found is not None:
        assert any(
            line.startswith(key)
            and line[len(key) :].split()[:1] == [line[len(key) :].split()[0]]
            and int(line[len(key) :].split()[0]) == found
            for line in text.split(b"\n")
            if line[len(key) :].split() and line[len(key) :].split()[0].isdigit()
        )


@given(st.lists(st.tuples(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.integers(0, 2**64 - 1))))
def test_every_field_of_a_regular_file_is_found(fields):
    """The first line of each key gives its number."""
    text = "\n".join(f"{key} {value}" for key, value in fields).encode()

    for key, value in reversed(dict(reversed(fields)).items()):
        assert field(text, key.encode() + b" ") == value
