"""Tests of ``whole_file``; ``new_file`` is tested with the command that writes with it."""

import os

import pytest

from otel_mlperf.whole_file import replacing, write_whole


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_file_is_replaced_by_a_whole_one(tmp_path, is_durable):
    """Only what it is to be lies in the folder afterwards."""
    path = tmp_path / "state"
    path.write_bytes(b"before")
    write_whole(path, b"after", is_durable=is_durable)

    assert path.read_bytes() == b"after"
    assert os.listdir(tmp_path) == ["state"]


def test_an_error_leaves_what_was_there(tmp_path):
    """Also one that is no error of the disk, such as an interrupt."""
    path = tmp_path / "state"
    path.write_bytes(b"before")

    def fail():
        with replacing(path) as name, open(name, "wb") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["state"]


def test_what_a_killed_writer_left_is_written_over(tmp_path):
    """A single writer always takes the same other name."""
    (tmp_path / "state.new").write_bytes(b"half of something longer")
    write_whole(tmp_path / "state", b"whole")

    assert (tmp_path / "state").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["state"]


def test_writers_at_once_take_names_of_their_own(tmp_path):
    """While one writes, another's file gets into place whole."""
    path = tmp_path / "run.json"
    with replacing(path, temporary=tmp_path / ".a") as mine, open(mine, "wb") as file:
        file.write(b"mine")
        write_whole(path, b"theirs", temporary=tmp_path / ".b")
        assert path.read_bytes() == b"theirs"

    assert path.read_bytes() == b"mine"
    assert os.listdir(tmp_path) == ["run.json"]
