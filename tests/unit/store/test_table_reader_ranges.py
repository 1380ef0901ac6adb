"""Ranges of time contain every row of a table once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import MS, START, RunFolderBuilder

from otel_mlperf.store.table_reader import Store, time_ranges

STARTS = st.lists(st.integers(0, 30), max_size=40)


@settings(max_examples=25)
@given(starts=STARTS, rows=st.integers(1, 10))
def test_ranges_part_the_rows_without_parting_a_moment(starts, rows):
    """Each row is in one range; a range has no more rows than asked for, but for one moment's."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolderBuilder(Path(folder))
        for number, at in enumerate(starts):
            run.step(number, at * MS, {"forward": MS}, phase="train" if at % 2 else "test")
        store = Store(run.write())

        wanted = "phase = $phase"
        ranges = list(
            time_ranges(store, "steps", "start_ns", wanted, {"phase": "train"}, rows=rows)
        )

    odd = sorted(START + at * MS for at in starts if at % 2)
    parts = [[at for at in odd if low <= at < high] for low, high in ranges]
    assert [at for part in parts for at in part] == odd
    assert all(part for part in parts)
    for part in parts:
        assert len(part) < rows + part.count(part[-1]) + part.count(part[0])
