"""Pipes, devices and links in a run folder block nothing."""

from __future__ import annotations

import os
import shutil

import pytest
from kineto_traces import training_step, write_trace
from run_folders import digits

from otel_mlperf.agent.lifecycle.run_recovery import deliver_rest
from otel_mlperf.analysis.findings.finding_sources import judge_run
from otel_mlperf.errors import StoreError, TraceError
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.store.run_folders import read_run, scan_runs
from otel_mlperf.store.table_reader import Store

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
@pytest.mark.parametrize("name", ["tables", "tables/steps"])
def test_a_folder_of_tables_that_is_a_link_is_refused(tmp_path, folder, name):
    """Its files are outside of the run folder."""
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")

    with pytest.raises(StoreError, match=f"reading {folder}/tables/.* link"):
        Store(folder).rows("SELECT count(*) FROM steps")


@pytest.mark.fault("S20")
def test_a_part_whose_name_is_a_pattern_is_left_out(folder):
    """DuckDB would read every file that the pattern matches, a pipe too."""
    (part,) = (folder / "tables" / "steps").glob("*.parquet")
    shutil.copy(part, part.with_name("*-000001.parquet"))

    assert Store(folder).rows("SELECT count(*) FROM steps") == [(40,)]


def test_a_run_folder_whose_path_is_a_pattern_is_read_alone(tmp_path, folder):
    """Folders that the pattern matches are other runs."""
    for name in ("b*", "bc"):
        shutil.copytree(folder, tmp_path / name)

    assert Store(tmp_path / "b*").rows("SELECT count(*) FROM steps") == [(40,)]


@pytest.mark.fault("S20")
@pytest.mark.parametrize("linked", ["profiles", "profiles/trace.json"])
def test_a_trace_that_a_link_in_a_run_folder_leads_to_is_not_read(tmp_path, folder, linked):
    """Links elsewhere are the user's own."""
    (folder / "profiles").mkdir()
    trace = folder / "profiles" / "trace.json"
    write_trace(trace, training_step())
    (folder / linked).rename(tmp_path / "outside")
    (folder / linked).symlink_to(tmp_path / "outside")
    own = tmp_path / "own.json"
    own.symlink_to(tmp_path / "outside" / "trace.json" if linked == "profiles" else "outside")

    with pytest.raises(TraceError, match="cannot read the trace"):
        read_trace(trace)
    assert len(read_trace(own).events) > 0


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
