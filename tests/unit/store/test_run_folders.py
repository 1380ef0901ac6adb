"""A user's input selects the right run."""

from __future__ import annotations

import json
import os
import time

import pytest

from otel_mlperf.errors import NoSuchRun, SharedRunFolderWarning, StoreError
from otel_mlperf.store.run_folders import find_run, list_runs, runs_dir


def make(folder, name, run_id, started_s, short=4):
    """An empty run folder."""
    path = folder / f"{name}-{run_id[:short]}"
    path.mkdir(parents=True)
    facts = {"id": run_id, "name": name, "started_ns": started_s * 1_000_000_000}
    (path / "run.json").write_text(json.dumps(facts))
    return path


@pytest.fixture
def runs(tmp_path):
    """Four runs, the newest last; two of one name, two whose ids begin alike."""
    folder = tmp_path / "otel-runs"
    make(folder, "digits", "3f2a1111", 100)
    make(folder, "digits", "77aa2222", 200)
    make(folder, "mnist", "3f2b3333", 300)
    make(folder, "other", "job-41.0", 400, short=8)
    (folder / "notes").mkdir()
    return folder


@pytest.mark.parametrize(
    ("run", "meant"),
    [
        ("latest", "other-job-41.0"),
        ("mnist", "mnist-3f2b"),
        ("digits", "digits-77aa"),
        ("digits-3f2a", "digits-3f2a"),
        ("3f2a", "digits-3f2a"),
        ("3f2a1", "digits-3f2a"),
        ("3f2a1111", "digits-3f2a"),
        ("7", "digits-77aa"),
        ("job-41.0", "other-job-41.0"),
    ],
)
def test_a_run_is_found_by_name_id_or_latest(runs, run, meant):
    """Of one name the newest is meant; an id may be cut."""
    assert find_run(run, runs).path.name == meant


def test_a_run_is_found_by_its_path_from_anywhere(runs, tmp_path):
    """A path needs no runs folder."""
    found = find_run(str(runs / "mnist-3f2b"), tmp_path / "nowhere")

    assert (found.facts.id, found.short_id) == ("3f2b3333", "3f2b")


def test_an_id_that_is_whole_beats_longer_ones(runs):
    """The second ``start()`` of a process has the same id with ``.2`` behind it."""
    make(runs, "again", "77aa2222.2", 500, short=12)

    assert find_run("77aa2222", runs).path.name == "digits-77aa"


def test_a_beginning_of_several_ids_asks_for_more(runs):
    """The whole ids are shown, to copy from."""
    with pytest.raises(NoSuchRun) as error:
        find_run("3f2", runs)

    when = time.strftime("%d %b %H:%M", time.localtime(300))
    assert str(error.value) == (
        "looking for run '3f2': 2 ids start with this text; use a longer prefix:"
        f"\n  3f2b3333  mnist  {when}"
        f"\n  3f2a1111  digits  {time.strftime('%d %b %H:%M', time.localtime(100))}"
    )


def test_an_unknown_run_shows_the_five_newest(runs):
    """The sixth is not shown."""
    for number in range(3):
        make(runs, f"new{number}", f"{number}{number}{number}{number}", 500 + number)
    with pytest.raises(NoSuchRun) as error:
        find_run("nope", runs)

    head, *listed = str(error.value).split("\n")
    assert head == (
        f"looking for run 'nope' in {runs}: no run has this name, id or path; the newest runs are:"
    )
    assert [line.split()[:2] for line in listed] == [
        ["2222", "new2"],
        ["1111", "new1"],
        ["0000", "new0"],
        ["job-41.0", "other"],
        ["3f2b", "mnist"],
    ]


@pytest.mark.parametrize(
    ("exists", "found"),
    [(False, "the folder does not exist"), (True, "the folder contains no runs")],
)
def test_without_any_run_it_says_where_it_looked(tmp_path, exists, found):
    """And what can be done."""
    folder = tmp_path / "otel-runs"
    if exists:
        folder.mkdir()
    with pytest.raises(NoSuchRun) as error:
        find_run("latest", folder)

    assert str(error.value) == (
        f"looking for run 'latest' in {folder}: {found}; change to the folder where the run was "
        "started, set OTEL_MLPERF_DIR, or pass the path of a run folder"
    )


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "a/" * 3000])
def test_what_can_be_no_file_name_is_no_run(runs, name):
    """It is not found, like any other name."""
    with pytest.raises(NoSuchRun, match="no run has this name"):
        find_run(name, runs)


def test_runs_are_listed_newest_first(runs):
    """What is no run folder is passed over."""
    assert [run.facts.name for run in list_runs(runs)] == ["other", "mnist", "digits", "digits"]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"id": "bad1", "name": "bad", "started_ns": 1, "params": {"a": NaN}}',
        b'{"id": "bad1", "name": "\xff", "started_ns": 1}',
    ],
    ids=["cut", "no number", "no text"],
)
def test_a_run_that_cannot_be_read_hides_no_other(runs, content):
    """Only who names that very run hears of it."""
    (runs / "bad-bad1").mkdir()
    (runs / "bad-bad1" / "run.json").write_bytes(content)

    assert len(list_runs(runs)) == 4
    assert find_run("latest", runs).path.name == "other-job-41.0"
    with pytest.raises(StoreError, match=r"reading .*bad-bad1/run\.json: "):
        find_run("bad-bad1", runs)


def test_a_uuid_is_shown_by_its_first_eight_characters(runs):
    """And found by them, also beside the second run of the same process."""
    uuid = "0b6f3c1e-52a7-4c1e-9d53-0a1b2c3d4e5f"
    make(runs, "job", uuid, 500, short=36)
    make(runs, "job2", uuid + ".2", 501, short=38)

    found = find_run("0b6f3c1e", runs)

    assert (found.facts.id, found.short_id) == (uuid, "0b6f3c1e")


def test_the_folder_of_runs_comes_from_the_environment():
    """Else it is in the working directory."""
    assert str(runs_dir({"OTEL_MLPERF_DIR": "/data/runs"})) == "/data/runs"
    assert str(runs_dir({})) == "otel-runs"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"reading .*run\.json: .*; a run folder requires this file"),
        ('{"id": "a", "name": "b"}', "missing required field `started_ns`"),
        (
            '{"id": "a", "name": "b", "started_ns": 1, "format": 9}',
            "the file has format 9, this version of otel-mlperf supports 1; upgrade otel-mlperf",
        ),
    ],
)
def test_a_run_file_that_cannot_be_read_is_named(tmp_path, content, message):
    """Half a file, a wrong one, and one from the future."""
    folder = tmp_path / "x-1234"
    folder.mkdir()
    (folder / "run.json").write_text(content)

    with pytest.raises(StoreError, match=message):
        find_run(str(folder))


@pytest.mark.parametrize(("runs_mode", "run_mode"), [(0o2775, 0o700), (0o700, 0o770)])
def test_a_folder_that_others_can_change_is_read_with_a_warning(runs, runs_mode, run_mode):
    """A volume with a group, as Kubernetes mounts it."""
    runs.chmod(runs_mode)
    (runs / "mnist-3f2b").chmod(run_mode)

    with pytest.warns(SharedRunFolderWarning, match="other users can change the run folder"):
        assert find_run("mnist", runs).facts.name == "mnist"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_read_with_a_warning(runs):
    """That user can change what is read."""
    os.chown(runs / "mnist-3f2b", 65534, 65534)

    with pytest.warns(SharedRunFolderWarning, match="belongs to user 65534"):
        assert find_run("mnist", runs).facts.name == "mnist"
