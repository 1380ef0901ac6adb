"""The stored tables stay as they are: each column's name, type and place."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from otel_mlperf.store.part_writer import write_part
from otel_mlperf.tables import TABLES

STORED = {
    "processes": """
        rank:int32 restart:int32 local_rank:int32 world_size:int32 pid:int64 host:word
        service:word start_ns:int64 end_ns:int64 outcome:word error_type:word error_message:text
        error_step:int64? error_section:word result:text sections:int64 overhead_ns:int64
        instance_id:text has_gpu:bool
    """,
    "steps": """
        rank:int32 restart:int32 phase:word n:int64 number:int64 epoch:int64? start_ns:int64
        end_ns:int64 duration_ns:int64 self_ns:int64 samples:int64? tokens:int64? elements:int64?+
        flops:int64?+ error:bool kept:word? trace_id:text
    """,
    "sections": """
        rank:int32 restart:int32 phase:word n:int64? number:int64? name:word category:word
        parent:word path:word beside:bool aggregate:bool count:int64 sum_ns:int64 self_ns:int64
        min_ns:int64 max_ns:int64 start_ns:int64
    """,
    "resources": """
        rank:int32 restart:int32 phase:word name:word category:word path:word beside:bool
        in_step:bool measure:word count:int64 total:int64 least:int64 most:int64 spread:double
    """,
    "durations": """
        rank:int32 restart:int32 phase:word name:word category:word path:word beside:bool
        in_step:bool bound_s:double? minute_ns:int64?+ count:int64 errors:int64 within:int64
        sum_ns:int64 min_ns:int64 max_ns:int64 spread:double scale:int32 zeros:int64
        first_bucket:int64 counts:text
    """,
    "gpu_steps": """
        rank:int32 restart:int32 phase:word n:int64 number:int64 device:int32 gpu_ns:int64
        idle_ns:int64? host_paced_ns:int64 device_paced_ns:int64
    """,
    "spans": """
        rank:int32 restart:int32 trace_id:text span_id:text parent_id:text name:word category:word
        phase:word track:int64 thread:word thread_id:int64? start_ns:int64 end_ns:int64
        status:word interrupted:bool root_id:text n:int64? number:int64? epoch:int64? kept:word
        attributes:text links:text events:text?+ kind:word
    """,
    "values": """
        rank:int32 restart:int32 phase:word name:word number:int64? time_ns:int64 value:double
    """,
    "marks": """
        rank:int32 restart:int32 phase:word name:word number:int64 time_ns:int64
    """,
    "readings": """
        rank:int32? restart:int32 name:word labels:word time_ns:int64 value:double
    """,
    "instruments": """
        rank:int32 restart:int32 name:word unit:word kind:word
    """,
    "warnings": """
        rank:int32? restart:int32 id:word labels:word start_ns:int64 end_ns:int64 value:double
        threshold:double
    """,
    "windows": """
        rank:int32 restart:int32 digest:text number:int64? trace:text start_ns:int64 end_ns:int64
        is_unix_time:bool steps:text categories:text orphans:text collectives:text?
        unknown_rows:text? captured:text? damage:text
    """,
    "completeness": """
        rank:int32 restart:int32 digest:text ratio:double is_complete:bool has_device_times:bool
        launches:int64 answered:int64 losses:text whole:text
    """,
    "totals": """
        rank:int32 restart:int32 digest:text what:word category:word name:word device:int32?
        stream:int64? kind:word section:word section_ns:int64 count:int64 total_ns:int64
        self_ns:int64 device_ns:int64 min_ns:int64 max_ns:int64 p50_ns:int64 p95_ns:int64
    """,
    "launches": """
        rank:int32 restart:int32 digest:text name:word section:word operator:word inputs:word
        launch:word count:int64 total_ns:int64
    """,
    "streams": """
        rank:int32 restart:int32 digest:text device:int32 stream:int64? window_ns:int64
        first_ns:int64 last_ns:int64 count:int64 busy_ns:int64 overlap_ns:int64? idle_ns:int64
        gap_ns:int64 gaps:int64 host_wait_ns:int64 device_wait_ns:int64 unknown_wait_ns:int64
        compute_ns:int64 communication_ns:int64 copy_ns:int64 compute_communication_ns:int64
        compute_copy_ns:int64 communication_copy_ns:int64 exposed_communication_ns:int64
        exposed_copy_ns:int64 launches:int64 early:int64 delay_p50_ns:int64? delay_p95_ns:int64?
        delay_max_ns:int64?
    """,
    "copies": """
        rank:int32 restart:int32 digest:text device:int32 direction:word name:word pageable:bool
        count:int64 total_ns:int64 sized_ns:int64 bytes:int64?
    """,
    "gaps": """
        rank:int32 restart:int32 digest:text device:int32 start_ns:int64 duration_ns:int64
        cause:word operator:word thread:word next:word
    """,
    "allocator": """
        rank:int32 restart:int32 digest:text device_type:int32 device:int32 time_ns:int64
        allocated_bytes:int64? peak_bytes:int64? reserved_bytes:int64? change_bytes:int64
    """,
}
"""Columns of each table as stored runs have them; ``?``: may be null, ``+``: added later."""
IN_PARQUET = {"text": "string", "word": "string"}


def test_each_table_has_the_columns_of_stored_runs():
    """A column that is renamed, moved or of another type would make stored runs unreadable."""
    declared = {
        table: [f"{c.name}:{c.type}{'?' * c.null}{'+' * c.added}" for c in columns]
        for table, columns in TABLES.items()
    }

    assert declared == {table: columns.split() for table, columns in STORED.items()}


@pytest.mark.parametrize("table", STORED)
def test_parts_have_these_columns(tmp_path, table):
    """The schema of a part on disk is the declared one."""
    part = write_part(tmp_path, table, "a", 1, {column.name: [] for column in TABLES[table]})

    names_and_types = [
        column.rstrip("+").rstrip("?").split(":") for column in STORED[table].split()
    ]
    assert [(field.name, str(field.type), field.nullable) for field in pq.read_schema(part)] == [
        (name, IN_PARQUET.get(kind, kind), "?" in column)
        for (name, kind), column in zip(names_and_types, STORED[table].split(), strict=True)
    ]
