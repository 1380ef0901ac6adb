"""A program gets a stored run's tables, in the form that it requests."""

from __future__ import annotations

import sys

import duckdb
import pyarrow as pa
import pytest
from run_folders import MS, START, RunFolderBuilder
from tiers import import_framework

import otel_mlperf as om
from otel_mlperf.errors import MissingPackage, NoSuchRun, NoSuchTable


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of three steps, one value and a kernel."""
    built = RunFolderBuilder(tmp_path)
    built.process(end=1000 * MS)
    for n in (2, 0, 1):
        built.step(n, n * 10 * MS, {"forward": 4 * MS})
    built.row("values", rank=0, restart=0, phase="train", name="loss", number=1,
              time_ns=START, value=0.5)  # fmt: skip
    built.write()
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path))
    return om.read_run("latest")


def test_tables_hold_the_rows_in_order(run):
    """Each call gives the rows of its table in the order of time, whatever the parts' order."""
    steps = run.steps().to_arrow()

    assert steps.column("number").to_pylist() == [0, 1, 2]
    assert len(run.sections()) == 3
    assert run.values().to_arrow().to_pylist()[0]["value"] == 0.5
    assert (len(run.readings()), len(run.kernels())) == (0, 0)
    assert len(run.table("processes")) == 1


def test_kernels_are_those_of_the_windows(run, tmp_path):
    """Kernels come by the time that they took; other totals are none."""
    built = RunFolderBuilder(tmp_path, "profiled")
    for what, name, total in (("kernel", "b", 1), ("operator", "c", 9), ("kernel", "a", 5)):
        numbers = ("section_ns", "count", "self_ns", "device_ns", "min_ns", "max_ns", "p50_ns",
                   "p95_ns")  # fmt: skip
        built.row("totals", rank=0, restart=0, digest="d", what=what, category="kernel", name=name,
                  device=0, stream=7, kind="compute", section="", total_ns=total,
                  **dict.fromkeys(numbers, 1))  # fmt: skip
    built.write()

    assert om.read_run("profiled").kernels().to_arrow().column("name").to_pylist() == ["a", "b"]


@pytest.mark.frameworks
def test_everybody_who_reads_arrow_takes_a_table(run):
    """Arrow, pandas and DuckDB get the same numbers."""
    pandas = import_framework("pandas")
    steps = run.steps()
    relation = steps.to_duckdb().aggregate("sum(duration_ns)::BIGINT")

    assert pa.table(steps).equals(steps.to_arrow())
    assert isinstance(steps.to_pandas(), pandas.DataFrame)
    assert steps.to_pandas().duration_ns.sum() == 12 * MS
    assert relation.fetchall() == [(12 * MS,)]
    assert isinstance(relation, duckdb.DuckDBPyRelation)


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_missing_package_is_named(run, monkeypatch, package):
    """Whoever has not installed it is told what to install, and what needs nothing."""
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(MissingPackage, match=rf"pip install {package}.*to_arrow"):
        getattr(run.steps(), f"to_{package}")()


def test_what_is_not_there_is_said(run, tmp_path):
    """A run or table that is not there is an error which says what there is."""
    assert om.read_run(tmp_path / "digits-3f2a").id == run.id
    assert om.read_run("digits").path == run.path
    with pytest.raises(NoSuchRun, match="no run has this name"):
        om.read_run("letters")
    with pytest.raises(NoSuchTable, match="no such table; tables: processes, steps"):
        run.table("stepz")
