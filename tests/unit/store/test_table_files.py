"""A run's tables are exported completely, and nothing is replaced unintentionally."""

from __future__ import annotations

import csv

import pyarrow.parquet as pq
import pytest
from run_folders import RunFolderBuilder, S, digits

from otel_mlperf.errors import NothingToExport, OutputError
from otel_mlperf.store.table_files import write_tables
from otel_mlperf.store.table_reader import Store


@pytest.fixture
def store(tmp_path):
    """The tables of a run of 40 steps."""
    return Store(digits(tmp_path).write())


def test_each_table_with_rows_is_a_file_of_csv(store, tmp_path):
    """With its columns and every row as it is; what is not known is empty."""
    folder = tmp_path / "it's a folder"

    counts = write_tables(store, folder, "csv")

    with open(folder / "steps.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert counts == {"processes": 1, "steps": 40, "sections": 167}
    assert {path.name for path in folder.iterdir()} == {f"{table}.csv" for table in counts}
    wanted = store.records("SELECT * FROM steps")
    assert [(row["n"], row["duration_ns"], row["epoch"]) for row in rows] == [
        (str(row["n"]), str(row["duration_ns"]), "") for row in wanted
    ]


def test_parquet_has_the_types_of_the_tables(store, tmp_path):
    """And the same rows."""
    write_tables(store, tmp_path / "tables", "parquet")

    found = pq.read_table(tmp_path / "tables" / "steps.parquet")
    assert found.to_pylist() == store.records("SELECT * FROM steps")


def test_a_folder_that_is_there_is_written_to_only_by_force(store, tmp_path):
    """Other files in it stay."""
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "mine").write_text("x")

    with pytest.raises(OutputError, match="the folder already exists; write into it with --force"):
        write_tables(store, folder, "csv")

    write_tables(store, folder, "csv", is_replaced=True)
    assert (folder / "mine").read_text() == "x"
    assert (folder / "steps.csv").exists()


def test_a_place_that_refuses_is_named(store, tmp_path):
    """With the system's reason."""
    with pytest.raises(
        OutputError, match="No such file or directory; choose another place with --out"
    ):
        write_tables(store, tmp_path / "nowhere" / "tables", "csv")


def test_a_run_without_rows_leaves_no_folder(tmp_path):
    """It says so."""
    with pytest.raises(NothingToExport):
        write_tables(Store(tmp_path / "none"), tmp_path / "tables", "csv")
    assert list(tmp_path.iterdir()) == []


def test_no_text_of_a_csv_file_is_a_formula(tmp_path):
    """A spreadsheet would run it; numbers keep their minus, and other texts are as they were."""
    run = RunFolderBuilder(tmp_path)
    texts = ["=1+1", "+1", "-cmd", "@x", "\tx", "\r=x", " =x", "\uff1dx", "a=b", "'x", "loss", ""]
    for number, text in enumerate(texts):
        run.mark(text, -3 * S, number)
    run.process(S)

    write_tables(Store(run.write()), tmp_path / "tables", "csv")

    with open(tmp_path / "tables" / "marks.csv", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["number"]))
    assert [row["name"] for row in rows] == [
        "'=1+1", "'+1", "'-cmd", "'@x", "'\tx", "'?=x", "' =x", "'\uff1dx", "a=b", "'x", "loss", "",
    ]  # fmt: skip


def test_no_text_of_a_csv_file_commands_a_terminal(tmp_path):
    """Neither escape sequences nor characters that turn the direction; line feeds stay quoted."""
    run = RunFolderBuilder(tmp_path)
    run.mark("a\x1b[2J\u202egpj.exe\u2066\x9b1m\x7f\nb", S, 1)
    run.process(S)

    write_tables(Store(run.write()), tmp_path / "tables", "csv")

    with open(tmp_path / "tables" / "marks.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["name"] == "a?[2J?gpj.exe??1m?\nb"


def test_no_text_of_a_parquet_file_commands_a_terminal(tmp_path):
    """A query prints what is in it; formulas stay, for no spreadsheet computes them there."""
    run = RunFolderBuilder(tmp_path)
    run.mark("=a\x1b[2J\u202egpj\x9b1m", -3 * S, 1)
    run.process(S)

    write_tables(Store(run.write()), tmp_path / "tables", "parquet")

    (row,) = pq.read_table(tmp_path / "tables" / "marks.parquet").to_pylist()
    assert row["name"] == "=a?[2J?gpj?1m"
