"""Self time against a slow reference."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_mlperf.agent.derivation.ended_steps import self_times
from otel_mlperf.journal.ring_scan import ROW_TYPE

intervals = st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(0, 8), st.integers(0, 1))


def slow_self_time(rows, i) -> int:
    busy = set(range(int(rows["start"][i]), int(rows["end"][i])))
    for j, row in enumerate(rows):
        if j != i and row["parent"] == rows["span"][i] and row["track"] == rows["track"][i]:
            busy -= set(range(int(row["start"]), int(row["end"])))
    return len(busy)


@given(st.lists(intervals, min_size=1, max_size=9))
@settings(max_examples=3 * settings.default.max_examples)
def test_self_time_is_what_no_child_covers(found) -> None:
    """For any intervals, overlapping or not, on any tracks, in any order."""
    rows = np.zeros(len(found), ROW_TYPE)
    for i, (start, length, parent, track) in enumerate(found):
        values = (start, start + length, i + 1, parent if parent != i + 1 else 0, 1, track)
        for field, value in zip(("start", "end", "span", "parent", "root", "track"), values,
                                strict=True):  # fmt: skip
            rows[field][i] = value

    assert self_times(rows).tolist() == [slow_self_time(rows, i) for i in range(len(rows))]
