"""All ranks of a run find one folder, and different runs never the same."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from otel_mlperf.recorder.lifecycle.run_folder import (
    count_restart,
    discard_start,
    prepare_folder,
    short_ids,
    warn_of_others,
)

ROOT = Path(__file__).parents[4]
ID = "3f2a" + "0" * 28


def test_name_and_prefix(tmp_path):
    """A folder is named after the run and four characters of a random id."""
    assert prepare_folder(str(tmp_path), ID, "digits", {}) == str(tmp_path / "digits-3f2a")


@pytest.mark.fault("S16")
@pytest.mark.parametrize(
    ("run_id", "first"),
    [(ID, "3f2a"), (f"{ID}.2", "3f2a.2"), ("slurm-9.0", "slurm-9.0"), ("../x", "x")],
)
def test_short_ids(run_id, first):
    """A given id is used whole, made safe as a file name."""
    assert short_ids(run_id)[0] == first


@pytest.mark.fault("S16")
def test_ranks_of_a_run_whose_name_is_taken_share_a_folder(tmp_path):
    """Another run's id gives the same file name: each rank then draws the same longer one."""
    prepare_folder(str(tmp_path), "a/b", "digits", {})
    ranks = {prepare_folder(str(tmp_path), "a:b", "digits", {}) for _ in range(2)}

    assert len(ranks) == 1
    assert prepare_folder(str(tmp_path), "a/b", "digits", {}) not in ranks


def test_same_run(tmp_path):
    """All ranks of a run get the same folder, with one ``run.json``, also at once."""
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: prepare_folder(str(tmp_path), ID, "digits", {}), range(32)))

    assert len(found) == 1
    assert [p.name for p in (tmp_path / "digits-3f2a").iterdir()] == ["run.json"]


def test_same_prefix(tmp_path):
    """Runs whose ids begin alike get longer prefixes."""
    other = "3f2a" + "1" * 28
    prepare_folder(str(tmp_path), ID, "digits", {})

    assert prepare_folder(str(tmp_path), other, "digits", {}).endswith("digits-3f2a1111")
    assert prepare_folder(str(tmp_path), ID, "digits", {}).endswith("digits-3f2a")


def test_foreign_folder(tmp_path):
    """A folder with something else in ``run.json`` is not touched."""
    (tmp_path / "digits-3f2a").mkdir()
    (tmp_path / "digits-3f2a" / "run.json").write_text("not json")

    assert prepare_folder(str(tmp_path), ID, "digits", {}).endswith("digits-3f2a0000")


def test_facts(tmp_path):
    """What is known of the run is written with it; what JSON cannot hold as text."""
    folder = prepare_folder(str(tmp_path), ID, "digits", {"params": {"x": {1}}})

    with open(f"{folder}/run.json", encoding="utf-8") as file:
        assert json.load(file)["params"] == {"x": "{1}"}


class Odd:
    """What JSON has no word for, and cannot even be shown."""

    def __repr__(self):
        raise RuntimeError("not for you")


def test_what_json_cannot_hold(tmp_path):
    """Any parameter gives a file that every reader of JSON accepts, with text for the odd ones."""
    loop: list = []
    loop.append(loop)
    params = {"clip": float("inf"), "deep": [{"x": float("nan")}, (-float("inf"),)], "big": 1 << 70,
              ("a", 1): 1, "odd": Odd(), "cut": "\udc80", "loop": loop, "path": Path()}  # fmt: skip
    folder = prepare_folder(str(tmp_path), ID, "digits", {"params": params})
    text = Path(folder, "run.json").read_text(encoding="utf-8")
    found = json.loads(text, parse_constant=pytest.fail)["params"]

    assert found["clip"] == "inf"
    assert found["deep"] == [{"x": "nan"}, ["-inf"]]
    assert found["big"] == str(1 << 70)
    assert (found["('a', 1)"], found["odd"], found["cut"]) == (1, "<Odd>", "?")
    assert found["path"] == "."


def test_json_beside_the_script(tmp_path):
    """A ``json.py`` beside the script does not keep a run from starting."""
    (tmp_path / "json.py").write_text("raise RuntimeError('not for you')\n")
    (tmp_path / "script.py").write_text(
        f"import sys; sys.path.insert(1, {str(ROOT)!r})\n"
        "import otel_mlperf as om\n"
        "om.start('x', params={'a': 1}, console=False, agent='none', dir='runs')\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("runs/x-*/run.json"))


def test_discarded_start(tmp_path):
    """A start that failed takes back its own traces, and the folder only if it was the first."""
    folder = Path(prepare_folder(str(tmp_path), ID, "digits", {}))
    assert [count_restart(str(folder), 0, None) for _ in range(2)] == [0, 1]
    discard_start(str(folder), "0-1")

    assert [path.name for path in (folder / "starts").iterdir()] == ["0-0"]
    discard_start(str(folder))
    assert (folder / "run.json").exists()
    discard_start(str(folder), "0-0")
    assert not folder.exists()


@pytest.mark.fault("F26")
def test_restarts(tmp_path):
    """The launcher's count wins; else each start of a rank counts one."""
    folder = str(tmp_path)

    assert [count_restart(folder, 0, None) for _ in range(3)] == [0, 1, 2]
    assert count_restart(folder, 1, None) == 0
    assert [count_restart(folder, 2, 5) for _ in range(2)] == [5, 5]


@pytest.mark.parametrize(
    ("runs_mode", "run_mode", "is_warned"),
    [(0o700, 0o700, False), (0o755, 0o755, False), (0o1777, 0o700, False),
     (0o2775, 0o700, True), (0o700, 0o770, True), (0o777, 0o777, True)],
)  # fmt: skip
def test_a_folder_that_others_can_change_is_warned_of_once(
    tmp_path, said, runs_mode, run_mode, is_warned
):
    """A volume with a group, as Kubernetes mounts it, is recorded to all the same."""
    runs = tmp_path / "runs"
    runs.mkdir()
    folder = Path(prepare_folder(str(runs), ID, "digits", {}))
    runs.chmod(runs_mode)
    folder.chmod(run_mode)

    warn_of_others(str(folder))

    warnings = [text for text in said() if "other users can change the run folder" in text]
    assert len(warnings) == is_warned


def test_folders_above_a_run_are_for_their_owner_alone(tmp_path):
    """Those that are made for it, whatever the umask."""
    before = os.umask(0o002)
    try:
        prepare_folder(str(tmp_path / "a" / "otel-runs"), ID, "digits", {})
    finally:
        os.umask(before)

    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_dir()}
    assert modes == {0o700}
