"""Do pipes, devices and links in a run folder hold nobody up?"""

from __future__ import annotations

import os

import pytest
from run_folders import digits

from otel_mlperf.agent.lifecycle.run_recovery import deliver_rest
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.errors import StoreError
from otel_mlperf.store.run_folders import read_run, scan_runs

PUT = {
    "a pipe": os.mkfifo,
    "a device": lambda path: os.symlink("/dev/zero", path),
    "a link": lambda path: os.symlink("/etc/passwd", path),
}


@pytest.fixture
def folder(tmp_path):
    """A run with 40 steps."""
    return digits(tmp_path).write()


@pytest.mark.fault("S20")
@pytest.mark.parametrize("put", PUT.values(), ids=PUT)
def test_a_run_that_is_no_regular_file_is_passed_over(tmp_path, folder, put):
    """It is named as what is wrong there, and the other runs are listed."""
    (tmp_path / "other").mkdir()
    put(tmp_path / "other" / "run.json")
    runs, bad = scan_runs(tmp_path)

    assert [run.path for run in runs] == [folder]
    assert isinstance(bad["other"], StoreError)


@pytest.mark.fault("S20")
@pytest.mark.parametrize("put", PUT.values(), ids=PUT)
def test_parts_that_are_no_regular_files_are_left_out(folder, put):
    """The figures are those of the parts that the agent has written."""
    for table in ("steps", "sections"):
        put(folder / "tables" / table / "other-000001.parquet")
    put(folder / "tables" / "other.json")
    (folder / "hot").mkdir()
    put(folder / "hot" / "0-0-1.jsonl")

    assert judge_run(read_run(folder)).steps.count == 40


@pytest.mark.fault("S20")
@pytest.mark.parametrize("put", PUT.values(), ids=PUT)
def test_recovery_reads_regular_files_only(folder, put):
    """State, log, settings and windows of somebody else's folder."""
    place = folder / "agent" / "node"
    (folder / "profiles").mkdir()
    place.mkdir(parents=True)
    put(place / "state")
    put(place / "wal-00000001")
    put(folder / "settings.json")
    put(folder / "profiles" / "0.window.json")

    assert deliver_rest(read_run(folder), {}) == (0, 0, 0, 0)
