"""Each value is in the right bucket, with the right exemplar, also if no cell is left."""

from __future__ import annotations

import math
import os
from collections import Counter

import pytest
from cell_values import buckets, head, number, series
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import otel_mlperf as om
from otel_mlperf.journal.layout import HistogramCell, Word
from otel_mlperf.recorder.api import instruments
from otel_mlperf.recorder.instruments.cells import HistogramCells, content_of


@pytest.fixture(autouse=True)
def _no_instruments(monkeypatch):
    """No test knows the instruments of another."""
    monkeypatch.setattr(instruments, "_instruments", {})


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)
@given(
    st.lists(
        st.floats(0, 1e300) | st.integers(0, 60).map(lambda e: 2.0**e) | st.just(5e-324),
        min_size=1,
        max_size=30,
    )
)
def test_buckets(recording, values):
    """Every value is in the bucket whose bounds are around it; a bound belongs to the one below."""
    name = os.urandom(8).hex()
    for value in values:
        om.histogram(name).record(value)

    cells = series(recording, "histogram")[name, ()]
    found = Counter()
    for index, count in buckets(cells).items():
        # By logarithms: the bounds of the first and last buckets are no floats.
        inside = [v for v in values if v and index < math.log2(v) * 8 <= index + 1]
        assert len(inside) == count
        found.update(inside)
    assert sum(found.values()) == sum(value > 0 for value in values)
    assert head(cells)[1:] == (values.count(0), min(values), max(values))
    assert head(cells)[0] == pytest.approx(math.fsum(values))


def test_no_cell_for_a_bucket(start):
    """A value for whose bucket no cell is left is lost as a whole, and counted."""
    recording = start(journal_rows=2048)
    length = om.histogram("length")
    room = recording.journal.shape.cells
    length.record(1)
    for i in range(room):
        recording.recorder.cells.take(("cell", "counter", f"c{i}", "", ()))
    length.record(1)
    length.record(1e9)

    cells = series(recording, "histogram")["length", ()]
    assert head(cells) == (2, 0, 1, 1)
    assert sum(buckets(cells).values()) == 2


def test_exemplar(start):
    """A histogram has an example: value, span and step of the last section in a kept trace."""
    recording = start(trace_first=1, trace_every=1000)
    length = om.histogram("length")
    for value in (1.5, 2.5):
        with om.step(), om.span("work"):
            length.record(value)
            length.record(value + 0.25)

    (example,) = [
        cell
        for cell in series(recording, "histogram")["length", ()]
        if cell[-1] == HistogramCell.EXEMPLAR
    ]
    value, time_ns, span, root, check, _, _ = example
    kept = recording.sections("work")[0]
    assert (number(value), span, root) == (1.5, kept.span, kept.root)
    assert kept.start <= time_ns <= kept.end
    assert check == value ^ time_ns ^ span ^ root


def test_cells_run_out(start, said):
    """When no cell is left, what is added is counted as lost, said once, and harms nothing."""
    recording = start(journal_rows=2048)
    room = recording.journal.shape.cells
    for i in range(room + 10):
        om.counter(f"c{i}").add(1)
        om.gauge(f"g{i}").set(1)

    assert sum(map(len, recording.cells().values())) == room
    assert recording.word(Word.LOST_CELLS) == room + 20
    assert ["no room for more series" in text for text in said()].count(True) == 1


@pytest.mark.fault("F57")
def test_bucket_taken_meanwhile(recording):
    """A signal handler that records while a bucket's cell is taken counts in the same one."""
    recorder, content = recording.recorder, content_of("histogram", "depth", "")
    handled = []

    class Interrupted:
        def take(self, wanted):
            if not handled:
                handled.append(None)
                handled[0] = cells[-1.0]
            return recorder.cells.take(wanted)

    word = recorder.cells.shared(content)
    cells = HistogramCells(recorder, recorder.parents, Interrupted(), word, content)

    assert [cells[-1.0]] == handled == [cells[-1.0]]
