"""The tables of a run folder contain what was written, also while they are being written."""

from __future__ import annotations

import threading

import pyarrow.parquet as pq
import pytest
from run_folders import MS, START, RunFolderBuilder, digits

from otel_mlperf.errors import StoreError
from otel_mlperf.store.part_writer import compact, write_part
from otel_mlperf.store.table_reader import Store
from otel_mlperf.tables import TABLES
from otel_mlperf.tables.row import transposed
from otel_mlperf.tables.run_tables import MarkRow, StepRow


def value(number):
    """One row of table ``values``."""
    fixed = {"rank": [0], "restart": [0], "phase": ["train"], "name": ["loss"], "value": [0.5]}
    return fixed | {"number": [number], "time_ns": [number]}


def test_tables_that_nobody_has_written_are_empty_with_all_their_columns(tmp_path):
    """A run that has just begun can be read."""
    store = Store(tmp_path)

    for table, columns in TABLES.items():
        assert store.rows(f'SELECT * FROM "{table}"') == []
        described = store.rows(f'DESCRIBE "{table}"')
        assert [row[0] for row in described] == [column.name for column in columns]


def test_rows_and_records_come_with_values_put_in(tmp_path):
    """A query's values are given by name."""
    store = Store(digits(tmp_path).write())

    assert store.rows("SELECT max(n) FROM steps WHERE n < $limit", limit=7) == [(6,)]
    assert store.records("SELECT n, kept FROM steps WHERE kept = 'slow'") == [
        {"n": 23, "kept": "slow"}
    ]


def test_rows_of_a_table_come_back_as_they_were_written(tmp_path):
    """Rows of the declared class become columns, and rows of that class again."""
    where = {"rank": 0, "restart": 0, "phase": "train", "name": "epoch"}
    rows = [MarkRow(**where, number=number, time_ns=10 * number) for number in range(3)]
    write_part(tmp_path, "marks", "node1", 1, transposed(MarkRow, rows))

    found = Store(tmp_path).read(MarkRow, "WHERE number > $least ORDER BY number", least=0)
    assert found == rows[1:]


def test_the_last_written_row_of_a_process_counts(tmp_path):
    """What a process was before is history: also after merging, and past a million parts."""
    run = RunFolderBuilder(tmp_path)
    run.process(outcome="running")
    path = run.write()
    store_row = Store(path).records("SELECT * FROM processes")[0]
    columns = {name: [value] for name, value in store_row.items()}
    for number, outcome in ((2, "running"), (999_999, "failed"), (1_000_000, "finished")):
        write_part(path, "processes", "node1", number, columns | {"outcome": [outcome]})
    before = Store(path).rows("SELECT outcome FROM processes")
    compact(path, "processes", "node1", over=2)

    assert before == [("finished",)]
    assert Store(path).rows("SELECT outcome FROM processes") == [("finished",)]


def test_parts_of_an_earlier_version_are_read_and_merged(tmp_path):
    """A run of before goes on in a version whose steps have a column more."""
    run = RunFolderBuilder(tmp_path)
    run.step(0, 0, {"forward": MS})
    path = run.write()
    (part,) = (path / "tables" / "steps").rglob("*.parquet")
    table = pq.read_table(part)
    pq.write_table(table.drop_columns(["flops"]), part)
    alone = Store(path).rows("SELECT n, flops FROM steps")
    (row,) = Store(path).read(StepRow)
    values = {name: [row] for name, row in table.to_pylist()[0].items()}
    for n in (1, 2):
        write_part(path, "steps", "node1", n + 1, values | {"n": [n], "flops": [7]})
    both = Store(path).rows("SELECT n, flops FROM steps ORDER BY n")
    compact(path, "steps", "node1", over=2)

    assert alone == [(0, None)]
    assert (row.n, row.flops) == (0, None)
    assert both == [(0, None), (1, 7), (2, 7)]
    assert len([*(path / "tables" / "steps").rglob("*.parquet")]) == 1
    assert Store(path).rows("SELECT n, flops FROM steps ORDER BY n") == both


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all" * 10])
def test_a_damaged_file_is_named(tmp_path, content):
    """The error says which file to move away, in our words."""
    run = digits(tmp_path).write()
    bad = run / "tables" / "steps" / "node2-000001.parquet"
    bad.write_bytes(content)

    with pytest.raises(StoreError) as error:
        Store(run).rows("SELECT sum(duration_ns) FROM steps")
    assert str(error.value).startswith(f"reading {bad}: ")
    assert str(error.value).endswith(
        "the file is damaged: move the file away to read the other data"
    )


def test_damage_inside_the_pages_is_named_too(tmp_path):
    """Head and foot are right, the middle is not."""
    run = digits(tmp_path).write()
    bad = run / "tables" / "steps" / "node1-000001.parquet"
    content = bytearray(bad.read_bytes())
    content[4:400] = b"\xff" * 396
    bad.write_bytes(content)

    with pytest.raises(StoreError, match=r"node1-000001\.parquet: "):
        Store(run).records("SELECT * FROM steps")


def test_a_folder_with_a_quote_in_its_name_can_be_read(tmp_path):
    """Paths are data, not SQL."""
    folder = tmp_path / "it's here"
    write_part(folder, "values", "a", 1, value(1))

    assert Store(folder).rows('SELECT number FROM "values"') == [(1,)]


def test_every_row_is_seen_once_while_parts_are_merged(tmp_path):
    """Rows 1 to n, for an n that never falls, whatever the writer does meanwhile."""
    write_part(tmp_path, "values", "a", 1, value(1))
    done = threading.Event()

    def write():
        try:
            for number in range(2, 120):
                write_part(tmp_path, "values", "a", number, value(number))
                compact(tmp_path, "values", "a", over=3)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while not done.is_set():
        rows = [row[0] for row in Store(tmp_path).rows('SELECT number FROM "values" ORDER BY 1')]
        assert rows == list(range(1, len(rows) + 1))
        assert len(rows) >= seen
        seen = len(rows)
    writer.join()

    assert Store(tmp_path).rows('SELECT count(*) FROM "values"') == [(119,)]


def test_a_store_that_is_open_follows_a_merge(tmp_path):
    """The files that it knew are gone: it looks again instead of failing."""
    for number in range(1, 6):
        write_part(tmp_path, "values", "a", number, value(number))
    store = Store(tmp_path)
    store.rows('SELECT 1 FROM "values"')
    compact(tmp_path, "values", "a", over=4)

    assert store.rows('SELECT count(*) FROM "values"') == [(5,)]


def test_times_and_ids_come_back_unchanged(tmp_path):
    """Nanoseconds since 1970 do not fit a float; nothing may round them."""
    store = Store(digits(tmp_path).write())

    assert store.rows("SELECT start_ns FROM steps WHERE n = 0") == [(START + 400 * MS,)]
