"""Tests of ``whole_file``; ``new_file`` is tested with the command that writes with it."""

import os
import stat

import pytest

from otel_mlperf.whole_file import (
    make_folder,
    open_private,
    read_regular,
    replacing,
    write_whole,
)


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


@pytest.mark.fault("S20")
@pytest.mark.parametrize("put", [lambda at, to: at.symlink_to(to), lambda at, to: os.mkfifo(at)])
def test_what_somebody_else_has_put_under_the_other_name_is_not_written_through(tmp_path, put):
    """A link leads to a file of the victim; a pipe would be waited for."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    put(tmp_path / "state.new", precious)
    write_whole(tmp_path / "state", b"state")

    assert precious.read_bytes() == b"precious"
    assert (tmp_path / "state").read_bytes() == b"state"
    assert (tmp_path / "state").is_file()
    assert not (tmp_path / "state").is_symlink()


@pytest.mark.fault("S20")
def test_files_that_are_appended_to_are_regular_ones(tmp_path):
    """Neither a link nor a pipe is opened, and what a link leads to keeps its mode."""
    precious = tmp_path / "precious"
    precious.touch(mode=0o644)
    (tmp_path / "link").symlink_to(precious)
    os.mkfifo(tmp_path / "pipe")

    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"symbolic links|not a regular file|No such device"):
            open_private(str(tmp_path / name), os.O_WRONLY | os.O_APPEND)
    assert precious.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("flags", [os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_CREAT])
def test_what_has_other_names_is_written_in_a_copy(tmp_path, flags):
    """A backup by hard links (cp -al) stays what it was, and so does a file of somebody else's."""
    backup = tmp_path / "backup"
    backup.write_bytes(b"old ")
    backup.chmod(0o644)
    (tmp_path / "log").hardlink_to(backup)

    fd = open_private(str(tmp_path / "log"), flags)
    os.lseek(fd, 0, os.SEEK_END)
    os.write(fd, b"new")
    os.close(fd)

    assert (tmp_path / "log").read_bytes() == b"old new"
    assert (backup.read_bytes(), backup.stat().st_mode & 0o777) == (b"old ", 0o644)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "log"]


@pytest.fixture
def run(tmp_path):
    """A run folder with a link to a folder that is nobody's business."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_bytes(b"precious")
    (folder / "linked").symlink_to("../home")
    return folder


def test_no_folder_of_a_run_leads_out_of_it(run, tmp_path):
    """Neither to write nor to read, however deep the link is."""
    for write in (
        lambda: write_whole(run / "linked" / "x", b"x"),
        lambda: open_private(str(run / "linked" / "x"), os.O_WRONLY | os.O_CREAT),
        lambda: make_folder(run / "linked" / "a" / "b"),
        lambda: make_folder(run / "linked"),
        lambda: read_regular(run / "linked" / "secret"),
    ):
        with pytest.raises(OSError, match=r"linked|Not a directory|File exists"):
            write()

    assert os.listdir(tmp_path / "home") == ["secret"]


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(run, tmp_path):
    """The file gets its name where it was begun."""
    make_folder(run / "tables")

    with replacing(run / "tables" / "x", is_durable=True) as name:
        (run / "tables").rename(run / "moved")
        (run / "tables").symlink_to("../home")
        with open(name, "wb") as file:
            file.write(b"whole")

    assert (run / "moved" / "x").read_bytes() == b"whole"
    assert os.listdir(tmp_path / "home") == ["secret"]


def test_the_way_to_a_run_may_have_links(run, tmp_path):
    """A scratch disk is often reached by one, and so may a run be."""
    (tmp_path / "scratch").symlink_to("run")

    write_whole(tmp_path / "scratch" / "x", b"x")
    make_folder(tmp_path / "scratch" / "a" / "b")

    assert (run / "x").read_bytes() == b"x"
    assert (run / "a" / "b").is_dir()


def test_folders_are_for_their_owner_alone(tmp_path):
    """Whatever the umask, also those in between; one that was there keeps its mode."""
    (tmp_path / "there").mkdir(mode=0o755)
    before = os.umask(0o002)
    try:
        make_folder(tmp_path / "there" / "a" / "b")
        make_folder(tmp_path / "there")
    finally:
        os.umask(before)

    modes = [stat.S_IMODE((tmp_path / "there" / at).stat().st_mode) for at in ("", "a", "a/b")]
    assert modes == [0o755, 0o700, 0o700]
    with pytest.raises(FileExistsError):
        make_folder(write_and_name(tmp_path / "file"))


def write_and_name(path):
    """A file where a folder is wanted."""
    path.write_bytes(b"")
    return path
