"""Rows give the same result by columns or one by one, and NumPy is used only if loaded."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.journal.layout import ROW, Flag, Kind
from otel_mlperf.journal.row_sums import new_calls as by_column
from otel_mlperf.journal.section_sums import Inside
from otel_mlperf.recorder.lifecycle.run_stats import by_row, new_calls
from otel_mlperf.recorder.lifecycle.stats_source import Known

OPEN, RUN, OUTERMOST = 7, 9, 11
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["open", "open", "step", "close", "close", "cancel", "mark", "pause"]),
        st.integers(1, 2),
        st.integers(2, 5),
        st.integers(0, 10**6),
    ),
    max_size=60,
)


def rows_of(acts):
    """What threads write that open and close sections and steps, each on a track of its own."""
    rows, now, ids = [], 1_000, iter(range(100, 1_000))
    open_ = {1: [(OPEN, 0, 6, False)], 2: [(RUN, 0, 6, False)]}

    def write(start, end, span, parent, track, name, kind):
        rows.append(ROW.pack(start, end, span, parent, 0, track, name, int(kind), len(rows) + 1))

    for act, track, name, took_ns in acts:
        stack, now = open_[track], now + took_ns
        around = stack[-1][0] if stack else RUN  # on the other track
        # Nothing begins in a run that has ended.
        if act in ("open", "step") and open_[2][:1] == [(RUN, 0, 6, False)]:
            span, is_step = next(ids), act == "step"
            stack.append((span, now, name, is_step))
            if is_step:
                write(now, 0, span, around, track, name, Kind.BEGIN)
        elif act == "mark":
            write(now, 0, 3, 0, 0, 0, Kind.MARK)
        elif act == "pause":
            now += 1
            write(now - 1 - took_ns, now, next(ids), 0, track, 1, Kind.SECTION | Flag.PAUSE)
        elif stack:
            span, start, name_, is_step = stack.pop()
            around = stack[-1][0] if stack else OUTERMOST
            kind = Kind.CANCEL if act == "cancel" else Kind.SECTION
            write(start, now, span, 0 if is_step else around, track, name_, kind)
    return rows


def inside():
    """Sections that are open in the first row, and what was in them before."""
    return Inside({OPEN: {1: 40, 2: 50}}, {})


def comparable(calls):
    return {name: (*sums, sorted(each)) for name, (*sums, each) in calls.items()}


@given(acts=ACTS, after=st.integers(0, 60))
def test_columns_and_rows_come_to_the_same(acts, after):
    """To the nanosecond: sections in sections, steps, cancelled ones, tracks, behind any slot."""
    text = b"".join(rows_of(acts))

    found = by_column(text, inside(), after)

    assert comparable(found) == comparable(by_row(text, inside(), after))


@pytest.mark.parametrize("tell", [by_row, by_column])
def test_a_garbage_collection_is_in_the_innermost_that_holds_it(tell):
    """Its row says its time and track alone; self times add up to the time of the outermost."""
    acts = [
        ("open", 1, 2, 0), ("open", 1, 3, 100), ("open", 2, 4, 0), ("pause", 1, 0, 49),
        ("close", 1, 0, 30), ("close", 2, 0, 0), ("pause", 1, 0, 9), ("close", 1, 0, 1),
    ]  # fmt: skip

    found = tell(b"".join(rows_of(acts)), inside(), 0)

    assert {name: own for name, (_, own, *_) in found.items()} == {1: 60, 2: 101, 3: 30, 4: 80}


@pytest.mark.parametrize("tell", [by_row, by_column])
def test_a_collection_in_each_step_is_in_each(tell):
    """However many there are in what is added up at once."""
    acts = [("open", 1, 2, 0), ("pause", 1, 0, 9), ("close", 1, 0, 5)] * 300

    found = tell(b"".join(rows_of(acts)), inside(), 0)

    assert found[2][1] == 300 * 5


def loading():
    module = ModuleType("numpy")
    module.__spec__ = SimpleNamespace(_initializing=True)
    return module


@pytest.mark.parametrize("numpy", [np, None, loading()], ids=["loaded", "not", "being loaded"])
def test_many_rows(numpy):
    """Thousands of rows are told with NumPy, without it, and while a thread still loads it."""
    rows = [ROW.pack(0, i, 100 + i, RUN, 0, 1, 5, int(Kind.SECTION), i) for i in range(1, 2_001)]
    known = Known(None, b"".join(rows), 1, {}, {}, 0, 0)

    found = new_calls(known, 1_000, {"numpy": numpy})

    total = sum(range(1_001, 2_001))
    assert comparable(found) == {5: (total, total, 1_001, 2_000, list(range(1_001, 2_001)))}


ASKS = """
import sys
import otel_mlperf as om
with om.start("asks", agent="none", console=False, dir=sys.argv[1]) as run:
    for _ in range(1000):
        with om.span("forward"):
            pass
    print(run.stats()["forward"].count, "numpy" in sys.modules)
"""


def test_a_question_loads_no_numpy(tmp_path):
    """A program that has not loaded NumPy is told without."""
    done = subprocess.run(
        [sys.executable, "-c", ASKS, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["1000", "False"]
