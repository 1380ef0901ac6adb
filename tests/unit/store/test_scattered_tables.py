"""A table that hundreds of agents have written is read once, and completely."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from otel_mlperf.store.part_writer import write_part
from otel_mlperf.store.parts import TablePart, table_folder
from otel_mlperf.store.table_reader import MANY, Store, is_read_once, measure_bytes, newest

BEFORE = {"restart": [0, 0], "phase": ["train", "train"], "name": ["loss", "loss"]}


@pytest.fixture
def scattered(tmp_path) -> Path:
    """A folder with two ranks' values of as many nodes as make a table scattered."""
    for node in range(MANY):
        columns = BEFORE | {"rank": [2 * node, 2 * node + 1], "number": [1, 2]}
        columns |= {"time_ns": [1, 2], "value": [0.25, 0.5]}
        write_part(tmp_path, "values", f"node{node}", 1, columns)
    return tmp_path


def test_every_row_is_there(scattered):
    """It is the same table, in however many files it lies."""
    store = Store(scattered)

    assert store.rows("SELECT count(DISTINCT rank), sum(value) FROM values") == [
        (2 * MANY, 0.75 * MANY)
    ]
    assert store.arrow("SELECT rank FROM values WHERE number = 2").num_rows == MANY
    assert Store(scattered, rank=5).rows("SELECT rank, value FROM values") == [(5, 0.5)]


def test_it_is_read_once(scattered):
    """The second question opens no file: thousands of them take seconds, whatever is asked."""
    store = Store(scattered)
    before = store.rows("SELECT count(*) FROM values")
    shutil.rmtree(table_folder(scattered, "values"))

    assert store.rows("SELECT count(*) FROM values") == before == [(2 * MANY,)]


@pytest.mark.parametrize(
    ("parts", "mib", "read"),
    [(1, 0, True), (1, 1, True), (1, 2, False), (MANY, 64, True), (MANY, 65, False), (0, 0, False)],
)
def test_only_small_tables_are_held_in_memory(tmp_path, parts, mib, read):
    """Up to 1 MiB on disk, or 64 MiB in many parts: of larger ones reading takes the time."""
    files = [tmp_path / f"{number}" for number in range(parts)]
    for number, file in enumerate(files):
        with file.open("wb") as opened:
            opened.truncate(0 if number else mib << 20)

    assert is_read_once(len(files), measure_bytes([str(file) for file in files])) is read


def test_a_part_that_was_merged_away_is_left_to_the_query(tmp_path):
    """Between the listing and the look at its size: the query lists the parts again."""
    assert not is_read_once(1, measure_bytes([str(tmp_path / "a-000001.parquet")]))


def test_what_is_now_is_in_the_newest_parts_of_each_node():
    """Who only wants to know that does not read hours; how a process is, is written but once."""
    parts = [
        TablePart(f"n{host}", number, number, Path(f"n{host}-{number}"))
        for host in range(300)
        for number in range(1, 11)
    ]
    kept = newest("steps", parts)

    assert {(part.host, part.first) for part in kept} == {
        (f"n{host}", number) for host in range(300) for number in (8, 9, 10)
    }
    assert newest("processes", parts) == parts
    assert newest("steps", parts[:1000]) == parts[:1000]
