"""The reported sums plus the rows since equal the sum of all calls, at any cut."""

from __future__ import annotations

import math
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.agent.derivation.running_sums import add_rows
from otel_mlperf.journal.layout import FIRST_PROGRAM_MARK, MAX_PROGRAM_MARKS, START, Flag, Kind
from otel_mlperf.journal.ring_scan import ROW_TYPE
from otel_mlperf.journal.section_sums import RunningSums, read_sums, write_sums
from otel_mlperf.recorder.lifecycle.run_stats import compute_stats
from otel_mlperf.recorder.lifecycle.stats_source import Known

LATEST = 1 << 60
MARKED = FIRST_PROGRAM_MARK


def row(slot, start, end, span, parent=0, track=1, name=5, kind=Kind.SECTION):
    return (start, end, span, parent, 0, track, name, int(kind), slot)


CALLS = st.lists(
    st.tuples(
        st.integers(0, 10**9), st.integers(0, 10**12), st.integers(0, 20),
        st.integers(1, 2), st.integers(2, 4),
    ),
    max_size=20,
)  # fmt: skip


def _rows(calls, marked):
    """Sections with ids from 100 on, inside one of a later row or nothing; a mark among them."""
    rows, slot = [], 0
    for i, (start, duration, ahead, track, name) in enumerate(calls):
        if i == marked:
            rows.append(row(slot := slot + 1, 0, 0, MARKED, kind=Kind.MARK, track=0, name=0))
        parent = 101 + i + ahead if i + 1 + ahead < len(calls) else 0
        rows.append(row(slot := slot + 1, start, start + duration, 100 + i, parent, track, name))
    if marked >= len(calls):
        rows.append(row(slot + 1, 0, 0, MARKED, kind=Kind.MARK, track=0, name=0))
    return rows


def _expected(rows, after):
    """By hand: count, sum, self, shortest, longest and variance by name."""
    sections = [one for one in rows if one[7] == Kind.SECTION]
    found = {}
    for start, end, span, _, _, track, name, _, slot in sections:
        inside = sum(o[1] - o[0] for o in sections if o[3] == span and o[5] == track)
        if slot > after:
            found.setdefault(f"n{name}", []).append((end - start, max(0, end - start - inside)))
    return {
        name: (
            len(of), sum(d for d, _ in of), sum(s for _, s in of),
            min(d for d, _ in of), max(d for d, _ in of),
        )
        for name, of in found.items()
    }  # fmt: skip


@given(calls=CALLS, marked=st.integers(0, 20), cuts=st.lists(st.integers(0, 21), max_size=4))
def test_every_cut_comes_to_the_same(calls, marked, cuts, tmp_path_factory):
    """Rows read by the agent in any pieces, and the rest by the process, add up to all of them."""
    rows = _rows(calls, marked)
    slot = next(one[8] for one in rows if one[7] == Kind.MARK)
    bounds = sorted(min(cut, len(rows)) for cut in cuts)
    told = RunningSums()
    for begin, end in zip([0, *bounds], bounds, strict=False):
        add_rows(told, np.array(rows[begin:end], ROW_TYPE), LATEST)
        told = msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=RunningSums)
    path = str(tmp_path_factory.mktemp("sums") / "0-1-1.journal")
    next_ = 1 + (bounds[-1] if bounds else 0)
    write_sums(path, next_, [], told)
    rest = np.array(rows[next_ - 1 :], ROW_TYPE).tobytes()
    known = Known(read_sums(path), rest, next_, {}, {}, 0, 0)

    for number, at in ((START, 0), (MARKED, slot)):
        mark = SimpleNamespace(number=number, slot=at, added_up={})
        found = compute_stats(known, mark, lambda number: f"n{number}")
        numbers = {
            name: (one.count, one.total_ns, one.self_ns, one.min_ns, one.max_ns)
            for name, one in found.items()
        }
        assert numbers == _expected(rows, at)


@given(durations=st.lists(st.integers(1, 10**12), min_size=1, max_size=60), cut=st.integers(0, 60))
def test_variance_and_quantile(durations, cut, tmp_path_factory):
    """The variance is that of all calls; the quantile is exact to a bucket."""
    rows = [row(i, 0, d, 100 + i) for i, d in enumerate(durations, 1)]
    cut, told = min(cut, len(rows)), RunningSums()
    add_rows(told, np.array(rows[:cut], ROW_TYPE), LATEST)
    path = str(tmp_path_factory.mktemp("sums") / "0-1-1.journal")
    write_sums(path, 1 + cut, [], told)
    rest = np.array(rows[cut:], ROW_TYPE).tobytes()
    mark = SimpleNamespace(number=START, slot=0, added_up={})
    (one,) = compute_stats(Known(read_sums(path), rest, 1 + cut, {}, {}, 0, 0), mark, str).values()

    true = sorted(durations)[math.ceil(0.95 * len(durations)) - 1]
    assert one.variance_ns2 == pytest.approx(np.var(durations), rel=1e-6, abs=1)
    assert true / 1.0906 <= one.p95_ns <= true * 1.0906


def test_step_is_inside_what_its_begin_says():
    """A step's row does not say what is around it: its time is no self time of that."""
    told = RunningSums()
    rows = [
        row(1, 0, 0, 100, parent=200, kind=Kind.BEGIN),
        row(2, 0, 30, 100, parent=0, name=6),
        row(3, 0, 100, 200, name=7),
    ]

    for one in rows:
        add_rows(told, np.array([one], ROW_TYPE), LATEST)

    assert told.marks[START].sections[7].self_ns == 70


def test_cancelled_step_gives_what_was_in_it_to_what_is_around():
    """A step that never was takes nothing from the section around it, what was in it does."""
    told = RunningSums()
    rows = [
        row(1, 0, 0, 100, parent=200, kind=Kind.BEGIN),
        row(2, 0, 10, 101, parent=100, name=6),
        row(3, 0, 30, 100, parent=0, kind=Kind.CANCEL),
        row(4, 0, 100, 200, name=7),
    ]

    for some in (rows[:3], rows[3:]):
        add_rows(told, np.array(some, ROW_TYPE), LATEST)

    assert told.marks[START].sections[7].self_ns == 90


@pytest.mark.parametrize("cut", range(6))
def test_a_garbage_collection_is_in_the_innermost_that_holds_it(cut):
    """Wherever the rows are cut: who holds it may end in a later batch, and be asked for then."""
    rows = [
        row(1, 20, 30, 50, name=1, kind=Kind.SECTION | Flag.PAUSE),
        row(2, 10, 40, 51, parent=52, name=5),
        row(3, 41, 45, 53, name=1, kind=Kind.SECTION | Flag.PAUSE),
        row(4, 0, 60, 52, name=6),
        row(5, 70, 80, 54, track=2, name=7),
    ]
    told = RunningSums()
    for some in (rows[:cut], rows[cut:]):
        add_rows(told, np.array(some, ROW_TYPE), LATEST)
    own = {name: of.self_ns for name, of in told.marks[START].sections.items()}

    assert own == {1: 14, 5: 20, 6: 26, 7: 10}


def test_newest_own_marks_are_kept():
    """Of marks that the program sets the newest sixteen are kept, and the start always."""
    told = RunningSums()
    marks = [row(i, 0, 0, FIRST_PROGRAM_MARK + i, kind=Kind.MARK, name=0) for i in range(1, 40)]

    add_rows(told, np.array(marks, ROW_TYPE), LATEST)

    assert sorted(told.marks) == [
        START,
        *range(FIRST_PROGRAM_MARK + 40 - MAX_PROGRAM_MARKS, FIRST_PROGRAM_MARK + 40),
    ]


@given(text=st.binary(max_size=640))
def test_damaged_rows_are_left_out(text):
    """Rows that something has written over stop nobody."""
    text = text[: len(text) // 64 * 64]

    add_rows(RunningSums(), np.frombuffer(text, ROW_TYPE), LATEST)
