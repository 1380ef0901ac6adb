"""The oldest parts are removed when a run folder is full."""

from __future__ import annotations

from otel_mlperf.store.part_writer import trim, write_part
from otel_mlperf.store.parts import table_folder

ROW = {
    "rank": [0], "restart": [0], "trace_id": ["0" * 32], "span_id": ["1" * 16], "parent_id": [""],
    "name": ["forward"], "category": ["forward"], "phase": ["train"], "track": [1],
    "thread": ["MainThread"], "start_ns": [0], "end_ns": [1], "status": ["unset"],
    "interrupted": [False], "root_id": [""], "kept": ["first"], "attributes": ["{}"],
    "links": ["[]"], "kind": ["section"],
}  # fmt: skip


def write_spans(folder, parts, host="a"):
    for number in range(1, parts + 1):
        write_part(folder, "spans", host, number, ROW)


def test_oldest_parts_go_and_the_newest_stays(tmp_path):
    """Every part but the last of a host is removed where nothing has room; each span is counted."""
    write_spans(tmp_path, 3)
    write_spans(tmp_path, 2, host="b")

    assert trim(tmp_path, "a", 0) == 2
    assert sorted(path.name for path in table_folder(tmp_path, "spans").iterdir()) == [
        "a-000003.parquet",
        "b-000001.parquet",
        "b-000002.parquet",
    ]


def test_damaged_part_goes_like_the_others(tmp_path):
    """What cannot be read any more is removed, without stopping who makes room."""
    write_spans(tmp_path, 3)
    (table_folder(tmp_path, "spans") / "a-000001.parquet").write_bytes(b"damaged")

    assert trim(tmp_path, "a", 0) == 1
    assert [path.name for path in table_folder(tmp_path, "spans").iterdir()] == ["a-000003.parquet"]
