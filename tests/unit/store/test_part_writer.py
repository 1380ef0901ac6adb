"""Rows get into a run folder completely, and only those that fit."""

from __future__ import annotations

import subprocess

import numpy as np
import pyarrow.parquet as pq
import pytest

from otel_mlperf.errors import StoreError
from otel_mlperf.own_processes import command
from otel_mlperf.store.part_writer import compact, merge_all, write_part
from otel_mlperf.store.parts import live_parts, parse, part_name, table_folder
from otel_mlperf.tables import TABLES


def values(*numbers):
    """Columns of table ``values`` with one row for each number."""
    return {
        "rank": [0] * len(numbers),
        "restart": [0] * len(numbers),
        "phase": ["train"] * len(numbers),
        "name": ["loss"] * len(numbers),
        "number": list(numbers),
        "time_ns": np.array(numbers, np.int64),
        "value": np.array(numbers, float),
    }


def stored(folder, table="values", column="number"):
    """What a reader sees in one column, by host and part."""
    parts = live_parts(table_folder(folder, table))
    return [v for part in parts for v in pq.read_table(part.path).column(column).to_pylist()]


def test_a_part_holds_the_rows_with_the_declared_columns(tmp_path):
    """What is written comes back, in the schema's columns, by the name of host and number."""
    path = write_part(tmp_path, "values", "gpu node/1", 7, values(1, 2))

    assert path == tmp_path / "tables" / "values" / "gpu_node_1-000007.parquet"
    assert pq.read_schema(path).names == [column.name for column in TABLES["values"]]
    assert pq.read_table(path).to_pylist()[1] == {
        "rank": 0,
        "restart": 0,
        "phase": "train",
        "name": "loss",
        "number": 2,
        "time_ns": 2,
        "value": 2.0,
    }


def test_the_same_number_again_replaces_the_part(tmp_path):
    """An agent that starts over writes its part again: the rows are there once."""
    write_part(tmp_path, "values", "a", 1, values(1))
    write_part(tmp_path, "values", "a", 1, values(1, 2))

    assert stored(tmp_path) == [1, 2]


def test_a_column_that_may_be_null_can_be_left_out(tmp_path):
    """Missing values are null, not zero."""
    columns = values(1, 2)
    del columns["number"]
    write_part(tmp_path, "values", "a", 1, columns)

    assert stored(tmp_path) == [None, None]


def test_an_empty_part_is_a_part(tmp_path):
    """No rows are no error."""
    write_part(tmp_path, "values", "a", 1, values())

    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vaule": [1.0]}, "writing table values: no such column: vaule"),
        ({"value": None}, "writing table values, column value: nothing for 1 rows"),
        ({"value": [1.0, 2.0]}, "writing table values, column value: 2 values for 1 rows"),
        ({"rank": [None]}, "column rank: a missing value where none is allowed"),
        ({"number": ["one"]}, "writing table values, column number: "),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(tmp_path, change, message):
    """A wrong column is named before anything is written."""
    with pytest.raises(StoreError) as error:
        write_part(tmp_path, "values", "a", 1, values(1) | change)

    assert message in str(error.value)
    assert not (tmp_path / "tables").exists()


def test_an_unknown_table_is_refused(tmp_path):
    """The tables are those of the schema."""
    with pytest.raises(
        StoreError, match="writing table 'vaules': no such table; tables: processes, steps"
    ):
        write_part(tmp_path, "vaules", "a", 1, {})


@pytest.mark.fault("F40")
def test_a_disk_that_refuses_leaves_nothing_half_written(tmp_path):
    """Where the part should lie is something else: the error names it, no temporary file stays."""
    place = tmp_path / "tables" / "values"
    (place / "a-000001.parquet").mkdir(parents=True)

    with pytest.raises(StoreError, match=r"writing .*a-000001\.parquet: Is a directory"):
        write_part(tmp_path, "values", "a", 1, values(1))
    assert [path.name for path in place.iterdir()] == ["a-000001.parquet"]


def test_many_small_parts_become_one_with_the_same_rows(tmp_path):
    """Merging changes the files and nothing else."""
    for number in range(1, 6):
        write_part(tmp_path, "values", "a", number, values(number))
    write_part(tmp_path, "values", "b", 1, values(100))

    merged = compact(tmp_path, "values", "a", over=4)

    assert merged == tmp_path / "tables" / "values" / "a-000001_000005.parquet"
    assert [part.path.name for part in live_parts(merged.parent)] == [
        "a-000001_000005.parquet",
        "b-000001.parquet",
    ]
    assert stored(tmp_path) == [1, 2, 3, 4, 5, 100]


def test_a_run_that_is_over_leaves_few_files(tmp_path):
    """What is small together becomes one file, of this node alone; the rest is left as it is."""
    write_part(tmp_path, "values", "a", 1, values(*range(1000)))
    small = [write_part(tmp_path, "values", "a", number, values(number)) for number in (2, 3)]
    write_part(tmp_path, "values", "b", 1, values(100))
    room = sum(path.stat().st_size for path in small)
    merged = merge_all(tmp_path, "values", "a", room)

    assert merged == tmp_path / "tables" / "values" / "a-000002_000003.parquet"
    assert [part.path.name for part in live_parts(merged.parent)] == [
        "a-000001.parquet",
        "a-000002_000003.parquet",
        "b-000001.parquet",
    ]
    assert stored(tmp_path) == [*range(1000), 2, 3, 100]
    assert merge_all(tmp_path, "values", "a", room) is None


def test_few_parts_are_left_alone(tmp_path):
    """Merging waits until there is enough to merge."""
    for number in range(1, 5):
        write_part(tmp_path, "values", "a", number, values(number))

    assert compact(tmp_path, "values", "a", over=4) is None


def test_rows_are_written_again_seldom_however_long_the_run(tmp_path):
    """Parts of 300 flushes stay few, and a row is copied once a size class, not once a merge."""
    written = 0
    for number in range(1, 301):
        write_part(tmp_path, "values", "a", number, values(number))
        merged = compact(tmp_path, "values", "a", over=4)
        written += pq.read_metadata(merged).num_rows if merged else 0

    assert stored(tmp_path) == list(range(1, 301))
    assert len(live_parts(table_folder(tmp_path, "values"))) <= 4 * 5
    assert written <= 300 * 5


def test_large_parts_are_merged_no_more(tmp_path):
    """Over its limit a run gives up whole parts: none may hold most of it."""
    write_part(tmp_path, "values", "a", 1, values(0))
    random = np.random.default_rng(1).random(1 << 17)
    columns = values(*range(1 << 17)) | {"value": random}
    write_part(tmp_path, "values", "a", 2, columns)
    for number in range(3, 8):
        write_part(tmp_path, "values", "a", number, values(number))
    compact(tmp_path, "values", "a", over=4)

    assert [part.path.name for part in live_parts(table_folder(tmp_path, "values"))] == [
        "a-000001.parquet", "a-000002.parquet", "a-000003_000007.parquet",
    ]  # fmt: skip


@pytest.mark.parametrize("removed", range(6))
def test_a_merge_cut_short_shows_every_row_once(tmp_path, removed):
    """An agent killed while it removes the merged parts leaves no row twice, and goes on."""
    for number in range(1, 6):
        write_part(tmp_path, "values", "a", number, values(number))
    place = table_folder(tmp_path, "values")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    compact(tmp_path, "values", "a", over=4)
    for name in sorted(before)[removed:]:
        (place / name).write_bytes(before[name])

    assert stored(tmp_path) == [1, 2, 3, 4, 5]
    assert compact(tmp_path, "values", "a", over=4) is None
    assert [path.name for path in place.iterdir()] == ["a-000001_000005.parquet"]


@pytest.mark.fault("F98")
def test_unfinished_and_foreign_files_are_no_parts(tmp_path):
    """What is being written, and what somebody else put there, is passed over."""
    write_part(tmp_path, "values", "a", 1, values(1))
    place = table_folder(tmp_path, "values")
    (place / ".a-000002.parquet.123").write_bytes(b"PAR1")
    (place / "notes.txt").write_text("mine")

    assert stored(tmp_path) == [1]


def test_what_a_killed_agent_left_unfinished_is_removed(tmp_path):
    """The next agent of that host cleans up behind it, and behind no other."""
    write_part(tmp_path, "values", "a", 1, values(1))
    place = table_folder(tmp_path, "values")
    (place / ".a-000002.parquet.1").write_bytes(b"PAR1")
    (place / ".a-b-000002.parquet.1").write_bytes(b"PAR1")
    (place / ".b-000002.parquet.1").write_bytes(b"PAR1")
    compact(tmp_path, "values", "a")

    assert sorted(path.name for path in place.iterdir()) == [
        ".a-b-000002.parquet.1",
        ".b-000002.parquet.1",
        "a-000001.parquet",
    ]


@pytest.mark.parametrize("host", ["node-000001", "n-000001_000002", "a.b", "x"])
@pytest.mark.parametrize(("first", "last"), [(1, 1), (3, 70), (999_999, 1_000_001)])
def test_a_part_name_is_read_back_as_it_was_made(tmp_path, host, first, last):
    """Host names that look like numbers do not confuse it."""
    name = part_name(host, first, last if last > first else None)

    part = parse(tmp_path / name)

    assert part is not None
    assert part[:3] == (host, first, last)


def test_writing_loads_no_library_that_the_agent_has_no_room_for(tmp_path):
    """Each of these is worth 5 to 60 MB; pyarrow loads pandas by itself where that is installed."""
    (tmp_path / "pandas.py").write_text("__version__ = '3.0.0'\n")
    script = (
        "import tempfile, numpy; from otel_mlperf.store.part_writer import *\n"
        "folder = tempfile.mkdtemp()\n"
        "for n in range(3):\n"
        "    write_part(folder, 'readings', 'a', n, {'rank': numpy.arange(3, dtype='i4'),"
        "'restart': [0] * 3, 'name': ['x'] * 3, 'labels': [''] * 3,"
        "'time_ns': numpy.arange(3), 'value': numpy.ones(3)})\n"
        "compact(folder, 'readings', 'a', over=2)\n"
        "heavy = {'duckdb', 'pandas', 'pyarrow.dataset', 'pyarrow.compute', 'numpy.ma'}\n"
        "print(sorted(name for name in heavy if sys.modules.get(name)))"
    )
    installed = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
    line = command("otel_mlperf.__main__", "", before=installed)
    place = line.index("-c") + 1
    text, _, _ = line[place].partition("from otel_mlperf.__main__")
    line[place] = text + script

    found = subprocess.run(line, capture_output=True, text=True, check=False)

    assert (found.stdout, found.stderr) == ("[]\n", "")


def test_what_other_nodes_wrote_is_not_looked_into(tmp_path):
    """Hundreds write into one folder: a node has its own parts, though names begin alike."""
    for host in ("n", "n-000001", "n1"):
        write_part(tmp_path, "values", host, 1, values(1))
    place = table_folder(tmp_path, "values")

    assert [part.path.name for part in live_parts(place, "n")] == ["n-000001.parquet"]
    assert [part.path.name for part in live_parts(place, "n-000001")] == ["n-000001-000001.parquet"]
