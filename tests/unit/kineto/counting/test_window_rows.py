"""The numbers of a window come back from a run folder as they were counted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from kineto_traces import BASE_NS, PID, allocation, real_traces, training_step, write_trace
from msgspec.structs import asdict

from otel_mlperf.journal.profiler_windows import Window, WindowStep
from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.counting.window_rows import rows_of, tables_of
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.linking.sections import Sections, no_sections
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.store.part_writer import write_part
from otel_mlperf.store.table_reader import Store
from otel_mlperf.tables import ROWS

US = 1000


def window(**facts):
    """A window of rank 3 with one step."""
    step = WindowStep(phase="train", n=7, number=70, span=f"{0xAB:016x}", trace="0" * 32)
    return Window(
        **{
            "run_id": "3f2a",
            "restart": 2,
            "rank": 3,
            "world_size": 8,
            "pid": PID,
            "number": 4,
            "trace": "t.pt.trace.json",
            "parent": "0" * 16,
            "steps": [step],
            "start": (BASE_NS, 0),
            "end": (BASE_NS + 1, 1),
            "activities": ["cpu", "cuda"],
        }
        | facts
    )


def sections(**names):
    """Recorded sections on the main thread: name to start and end in µs, the step first."""
    times = np.array(list(names.values()), np.int64).reshape(-1, 2) * US + BASE_NS
    n = len(names)
    return Sections(
        **{name: getattr(no_sections(), name) for name in Sections.__slots__}
        | {
            "span_id": np.arange(0xAB, 0xAB + n, dtype=np.uint64),
            "parent_id": np.array([0] + [0xAB] * (n - 1), np.uint64)[:n],
            "trace_id": np.ones((n, 16), np.uint8),
            "start_ns": times[:, 0],
            "end_ns": times[:, 1],
            "thread": np.full(n, PID, np.int64),
            "is_step": np.arange(n) == 0,
            "name": [name.replace("_", ".") for name in names],
        }
    )


def write(folder, tables, digest):
    """Parts that are named by the window, as an import writes them."""
    for table, columns in tables.items():
        write_part(folder, table, f"window-{digest[:16]}", 1, columns)


def test_rows_come_back_from_the_store_as_they_were(tmp_path):
    """Every table, every column, every row: what DuckDB reads is what was counted."""
    entries = [*training_step(), allocation(1100, 64, allocated=64, reserved=128)]
    trace = read_trace(write_trace(tmp_path / "t.json", entries))
    links = link(trace)
    numbers = count(trace, links)
    write(tmp_path, tables_of(trace, numbers, links.orphans), trace.digest)
    store = Store(tmp_path)

    for table, rows in asdict(rows_of(trace, numbers, links.orphans)).items():
        assert store.read(ROWS[table]) == rows, table


def test_a_window_that_is_written_twice_is_there_once(tmp_path):
    """Parts are named by the digest of the trace."""
    trace = read_trace(write_trace(tmp_path / "t.json", training_step()))
    links = link(trace)
    for _ in range(2):
        tables = tables_of(trace, count(trace, links), links.orphans)
        write(tmp_path, tables, trace.digest)

    assert Store(tmp_path).rows("SELECT count(*) FROM windows") == [(1,)]


def test_recorded_sections_steps_and_phases_are_named_as_in_the_run(tmp_path):
    """A kernel counts to the recorded section, its step by number, and the phase of that."""
    entries = [entry for entry in training_step() if entry["name"] != "ProfilerStep#3"]
    trace = read_trace(write_trace(tmp_path / "t.json", entries))
    recorded = sections(train_step=(1000, 1500), forward=(1005, 1115), loss=(1116, 1160))
    links = link(trace, recorded)
    numbers = count(trace, links, recorded, window())
    rows = rows_of(trace, numbers, links.orphans, window=window())

    on_device = {
        (row.what, row.name): row.total_ns
        for row in rows.totals
        if row.category == "device" and row.what != "stream"
    }
    assert on_device == {
        ("section", "forward"): 60_500,
        ("section", "loss"): 5_750,
        ("step", "train step 70"): 66_250,
        ("phase", "train"): 66_250,
    }
    kernels = {row.name: row.section for row in rows.totals if row.what == "kernel"}
    assert kernels == {"sgemm_128x64": "forward", "relu_kernel<float>": "loss"}
    (about,) = rows.windows
    assert (about.rank, about.restart, about.number) == (3, 2, 4)
    assert json.loads(about.steps) == ["train step 70"]


def test_steps_in_which_nothing_was_recorded_are_none_of_the_window(tmp_path):
    """A profiler that starts at the end of a step has nothing of it."""
    entries = [entry for entry in training_step() if entry["name"] != "ProfilerStep#3"]
    trace = read_trace(write_trace(tmp_path / "t.json", entries))
    recorded = sections(validate_step=(900, 999), train_step=(1000, 1500))
    recorded.is_step[:] = True
    links = link(trace, recorded)
    numbers = count(trace, links, recorded, None)
    (about,) = rows_of(trace, numbers, links.orphans).windows

    assert len(numbers.steps) == 2
    assert json.loads(about.steps) == [numbers.steps[1]]


def test_a_trace_of_no_run_has_the_rank_that_it_says(tmp_path):
    """Else the one that is given, else 0."""
    said = write_trace(tmp_path / "t.json", training_step(), distributedInfo={"rank": 5})
    trace = read_trace(said)
    links = link(trace)
    numbers = count(trace, links)

    assert rows_of(trace, numbers, {}).windows[0].rank == 5
    assert rows_of(trace, numbers, {}, rank=2).windows[0].rank == 2


@pytest.mark.parametrize("path", real_traces())
def test_recorded_traces_fit_the_tables(tmp_path, path):
    """No column is missing, unknown or of another type on any recorded trace."""
    trace = read_trace(path)
    links = link(trace)
    tables = tables_of(trace, count(trace, links), links.orphans)
    write(tmp_path, tables, trace.digest)

    for table, columns in tables.items():
        rows = len(columns["digest"])
        assert Store(tmp_path).rows(f"SELECT count(*) FROM {table}") == [(rows,)]
