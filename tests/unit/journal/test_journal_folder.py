"""Tests of ``journal.journal_folder``."""

import json
import os
import stat

import pytest

from otel_mlperf.errors import JournalError
from otel_mlperf.journal.journal_folder import (
    folders_of_run,
    folders_with_journals,
    is_own,
    journal_folder,
    journals_in,
    make_private,
    new_journal_name,
    rank_of,
)
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.journal_writer import Journal
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.run_files.run_file import write_run_file

META = JournalMeta(
    run_id="r", run_name="n", run_folder="/nowhere", service="s", host="h", pid=1, run_span=7,
    monotonic_ns=5, unix_ns=9,
)  # fmt: skip


def test_the_rank_of_a_journal_is_in_its_name():
    """It is read back from what it was named, and from a path; other files have none."""
    name = new_journal_name(12, 4242)

    assert name.startswith("12-4242-")
    assert rank_of(name) == 12
    assert rank_of(f"/dev/shm/7-x/{name}") == 12
    assert rank_of("lost.journal") is None


def test_processes_of_the_same_number_name_their_journals_differently():
    """The program of a container is process 1, also when the container is started again."""
    assert len({new_journal_name(0, 1) for _ in range(100)}) == 100


@pytest.mark.fault("S16")
@pytest.mark.parametrize(
    ("one", "other"),
    [("实验一", "实验二"), ("a/b", "a:b"), ("exp 1", "exp_1"), ("x" * 200, "x" * 201)],
)
def test_different_run_ids_have_different_journal_folders(tmp_path, one, other):
    """Also where the characters that a file name may have are the same."""
    assert folders_of_run(one, tmp_path)[0] != folders_of_run(other, tmp_path)[0]


@pytest.mark.fault("F26")
def test_runs_of_one_id_in_two_run_folders_have_different_journal_folders(tmp_path):
    """Otherwise one agent would serve both, and store all of it in one of them."""
    folders = [tmp_path / name / "digits-job" for name in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)
        write_run_file(str(folder), {"id": "job"})

    assert len({folders_of_run("job", folder)[0] for folder in folders}) == 2


@pytest.mark.fault("F26")
def test_a_run_folder_has_the_same_journals_whatever_its_path(tmp_path):
    """A volume is mounted at different paths in containers, and a folder can be moved."""
    write_run_file(str(tmp_path), {"id": "job"})
    before = folders_of_run("job", tmp_path)[0]
    elsewhere = tmp_path.rename(tmp_path.with_name("elsewhere"))

    assert folders_of_run("job", elsewhere)[0] == before


@pytest.mark.parametrize("key", [None, "../../x", 7])
def test_journals_of_an_earlier_version_are_found_by_their_run_id(tmp_path, key):
    """Its ``run.json`` has no key; so has one that somebody has damaged."""
    facts = {"id": "job"} if key is None else {"id": "job", "key": key}
    (tmp_path / "run.json").write_text(json.dumps(facts))

    assert folders_of_run("job", tmp_path, "/shm", user=7)[0] == "/shm/otel_mlperf-7/job"


def test_a_run_folder_that_the_disk_refuses_has_journals_by_its_path(tmp_path):
    """Its ranks find each other, and no run in another folder."""
    names = [folders_of_run("job", f"/sys/{name}", "/shm", user=7)[0] for name in ("a", "a", "b")]

    assert names[0] == names[1] != names[2]


def test_journals_are_found_folder_by_folder(tmp_path):
    """Those of the first folder come first; a folder that is not there has none."""
    first, second = tmp_path / "b", tmp_path / "a"
    for folder in (first, second):
        folder.mkdir()
        for name in ("1-5-0.journal", "0-9-0.journal", "readings"):
            (folder / name).touch()
    found = journals_in(first, str(tmp_path / "gone"), second)

    names = ["0-9-0.journal", "1-5-0.journal"]
    assert found == [folder / name for folder in (first, second) for name in names]


def test_folders_of_a_run_are_those_of_its_owner(tmp_path):
    """An administrator who looks at a run of somebody else means that one's journals."""
    (tmp_path / "run.json").write_text("{}")
    shared, on_disk = folders_of_run("../r", tmp_path, "/shm")

    assert shared.startswith(f"/shm/otel_mlperf-{tmp_path.stat().st_uid}/r-")
    assert on_disk == f"{tmp_path}/journals"
    assert folders_of_run("r", tmp_path, "/shm", user=7)[0] == "/shm/otel_mlperf-7/r"


def test_a_machine_without_shared_memory(tmp_path):
    """Where there is none, or no folder, journals lie in the run folder."""
    run_folder = str(tmp_path / "run")
    (tmp_path / "file").touch()

    for name in ("gone", "file"):
        place = journal_folder("r", run_folder, str(tmp_path / name))
        assert place == f"{run_folder}/journals"
    assert journal_folder("r", run_folder, str(tmp_path)).startswith(f"{tmp_path}/otel_mlperf-")


def test_only_folders_that_hold_a_journal_are_looked_at(tmp_path):
    """What an agent has emptied and could not remove is none."""
    mine = tmp_path / f"otel_mlperf-{os.getuid()}"
    for run in ("b", "a", "empty"):
        (mine / run).mkdir(parents=True)
    for run in ("b", "a"):
        (mine / run / "0-1-0.journal").touch()

    assert folders_with_journals(str(tmp_path)) == [mine / "a", mine / "b"]
    assert folders_with_journals(str(tmp_path / "gone")) == []


@pytest.fixture
def no_umask():
    """What is created gets the mode that it was asked for."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.fault("S20")
@pytest.mark.usefixtures("no_umask")
def test_a_journal_is_for_its_owner_alone(tmp_path):
    """Whatever the umask, nobody else may look into its folder, or read it."""
    folder = tmp_path / "otel_mlperf-7" / "run"
    make_private(str(folder))
    journal = Journal(str(folder / "0-1-0.journal"), 2048, META)

    assert mode_of(folder) == 0o700
    assert mode_of(journal.path) == 0o600
    journal.release()


@pytest.mark.fault("F43", "F99")
def test_a_folder_of_somebody_else_is_not_used(tmp_path, monkeypatch):
    """Nor one that is a link, wherever it leads."""
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(JournalError, match="is a link"):
        make_private(str(tmp_path / "link"))
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(JournalError, match="belongs to user"):
        make_private(str(tmp_path))


@pytest.mark.fault("F43", "F99")
def test_a_folder_that_somebody_made_before_us_is_not_used(tmp_path):
    """Who may write to the folder around it could move it away, or put another in its place."""
    around = tmp_path / "otel_mlperf-7"
    around.mkdir()
    around.chmod(0o777)

    with pytest.raises(JournalError, match="is writable for other users"):
        make_private(str(around / "run"))
    assert not is_own(around / "run")


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")


@pytest.mark.fault("F43", "F99", "S20")
@needs_root
@pytest.mark.parametrize(
    "given", ["otel_mlperf-0", "otel_mlperf-0/run", "otel_mlperf-0/run/0-1-0.journal"]
)
def test_what_somebody_else_has_put_there_is_not_read(tmp_path, given):
    """Not a journal of another user, nor one in a folder of another user, nor in one around it."""
    folder = tmp_path / "otel_mlperf-0" / "run"
    folder.mkdir(parents=True)
    (folder / "0-1-0.journal").touch()
    assert folders_with_journals(str(tmp_path)) == [folder]

    os.chown(tmp_path / given, 1, 1)

    assert journals_in(folder) == []
    assert folders_with_journals(str(tmp_path)) == []


@pytest.mark.fault("F43", "F99", "S20")
@pytest.mark.parametrize("path", ["", "run", "run/0-1-0.journal"])
def test_what_others_may_write_is_not_read(tmp_path, path):
    """A journal, or a folder of it, that anybody could have changed says nothing of us."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "0-1-0.journal").touch()
    assert journals_in(folder)

    (tmp_path / path).chmod(0o777)

    assert journals_in(folder) == []


@pytest.mark.fault("F43", "S16")
def test_a_link_is_no_journal(tmp_path):
    """A reader opens the file itself, not what another one points to."""
    journal = Journal(str(tmp_path / "0-1-0.journal"), 2048, META)
    (tmp_path / "0-1-1.journal").symlink_to(journal.path)

    with pytest.raises(JournalError, match=r"0-1-1\.journal"):
        JournalReader(str(tmp_path / "0-1-1.journal"))
    journal.release()
