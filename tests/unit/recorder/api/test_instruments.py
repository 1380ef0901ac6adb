"""Do counters, gauges and histograms of the program hold exactly what was recorded?"""

from __future__ import annotations

import math
import os
import signal
import struct
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import otel_mlperf as om
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import BUCKETS_AT, BUCKETS_IN_CELL, MOST_LABEL_SETS, HistogramCell
from otel_mlperf.recorder.api import instruments

OVERFLOW = (("otel.metric.overflow", "true"),)


@pytest.fixture(autouse=True)
def _no_instruments(monkeypatch):
    """No test knows the instruments of another."""
    monkeypatch.setattr(instruments, "_instruments", {})


def number(word):
    """A cell's word as the float that it holds."""
    return struct.unpack("<d", word.to_bytes(8, "little"))[0]


def series(recording, kind):
    """Value by name and labels of the instruments of one kind; cells of a histogram."""
    found = {}
    for (is_kind, name, *about), cells in recording.cells().items():
        if is_kind == kind:
            found[name.removeprefix("ml.user."), about[1]] = (
                cells if kind == "histogram" else number(cells[0][0])
            )
    return found


def buckets(cells):
    """Count by index of the bucket, of a histogram's cells."""
    found = {}
    for *words, part in cells:
        if part not in (0, HistogramCell.HEAD, HistogramCell.EXEMPLAR):
            first = (part - BUCKETS_AT) * BUCKETS_IN_CELL
            found |= {first + i: n for i, n in enumerate(words[:BUCKETS_IN_CELL]) if n}
    return found


def head(cells):
    """Sum, zeros, least and most of a histogram's cells."""
    ((total, zeros, least, most, *_),) = [cell for cell in cells if cell[-1] == HistogramCell.HEAD]
    return number(total), zeros, number(least), number(most)


def test_counter(recording):
    """What is added is summed up, one by default, whatever kind of plain number it is."""
    tokens = om.counter("tokens", "{token}")
    tokens.add(100)
    tokens.add()
    tokens.add(True)
    tokens.add(np.float32(0.5))
    tokens.add(np.int64(7))
    tokens.labels().add(1)

    assert series(recording, "counter") == {("tokens", ()): 110.5}


def test_gauge(recording):
    """The last value wins, whoever sets it."""
    depth = om.gauge("queue.depth")
    depth.set(3)
    thread = threading.Thread(target=depth.set, args=(-1.5,))
    thread.start()
    thread.join()

    assert series(recording, "gauge") == {("queue.depth", ()): -1.5}


def test_labels(recording):
    """Each label set is a series: in whatever order, in the call or before, of any kind."""
    tokens = om.counter("tokens")
    tokens.add(1, lang="de", split="train")
    tokens.add(2, split="train", lang="de")
    tokens.labels(lang="de", split="train").add(4)
    tokens.add(8, lang="en")
    tokens.add(16, lang=1)
    tokens.add(32, lang=True)
    tokens.add(64, lang=None)
    tokens.add(128, **{"user.lang": ["a", "b"], "tensor": torch.zeros(2)})

    assert series(recording, "counter") == {
        ("tokens", (("lang", "de"), ("split", "train"))): 7,
        ("tokens", (("lang", "en"),)): 8,
        ("tokens", (("lang", "1"),)): 16,
        ("tokens", (("lang", "true"),)): 32,
        ("tokens", ()): 64,
        ("tokens", (("tensor", "Tensor(float32, [2])"), ("user.lang", "['a', 'b']"))): 128,
    }


def test_labels_as_opentelemetry_has_them(recording, said):
    """A mapping behind the value means the same labels; what is none is left out and said."""
    counter, gauge, histogram = om.counter("c"), om.gauge("g"), om.histogram("h")
    for _ in range(2):
        counter.add(2, {"lang": "de"})
        counter.add(4, {"lang": "en"}, size="s")
        gauge.set(6, {"queue": "images"})
        histogram.record(7, {"lang": "de"})
    counter.add(3, lang="de")
    counter.add(1, "de")

    found = series(recording, "counter")
    assert found["c", (("lang", "de"),)] == 7
    assert found["c", (("lang", "en"), ("size", "s"))] == 8
    assert found["c", ()] == 1
    assert series(recording, "gauge")["g", (("queue", "images"),)] == 6
    assert head(series(recording, "histogram")["h", (("lang", "de"),)]) == (14, 0, 7, 7)
    assert said() == ["c: labels are given by name, lang='de'; 'de' is none"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_value_that_is_no_finite_number_is_said(recording, said, value):
    """It changes nothing, and is not left out in silence."""
    om.gauge("depth").set(3)
    om.gauge("depth").set(value)

    assert series(recording, "gauge") == {("depth", ()): 3}
    assert said() == [f"depth: {value} is left out; log() records such values"]


def test_same_name_is_the_same_object(said):
    """An instrument is found again by its name; a series by its labels."""
    assert om.counter("same", "By") is om.counter("same", "By")
    assert om.gauge("same g") is om.gauge("same g")
    assert om.histogram("same h") is om.histogram("same h")
    assert om.counter("same", "By").labels(a="1", b="2") is om.counter("same", "By").labels(
        b="2", a="1"
    )
    assert said() == []


def test_name_of_another_kind(recording, said):
    """A name that is taken by another kind gets a name of its own, which is said once."""
    om.counter("clash").add(1)
    for _ in range(2):
        om.gauge("clash").set(5)

    assert series(recording, "counter") == {("clash", ()): 1}
    assert series(recording, "gauge") == {("clash.gauge", ()): 5}
    assert said() == ["clash is a counter already; the gauge is published as clash.gauge"]


def test_other_unit(said):
    """A second unit for a name is left out, which is said."""
    assert om.counter("in bytes", "By") is om.counter("in bytes", "s")
    assert said() == ["in bytes counts in 'By' already; the unit 's' is left out"]


def test_from_before_start(start):
    """What was made before a run records into each run for itself, also through a kept method."""
    tokens, length = om.counter("tokens"), om.histogram("length")
    tokens.add(5)
    length.record(5)
    first = start()
    tokens.add(1, lang="de")
    kept = [tokens.add, tokens.labels(lang="de").add, length.record]
    for call in kept:
        call(2)
    om.stop()
    for call in kept:
        call(4)
    second = start()
    for call in kept:
        call(8)

    assert series(first, "counter") == {("tokens", ()): 2, ("tokens", (("lang", "de"),)): 3}
    assert series(second, "counter") == {("tokens", ()): 8, ("tokens", (("lang", "de"),)): 8}
    assert head(series(first, "histogram")["length", ()]) == (2, 0, 2, 2)
    assert head(series(second, "histogram")["length", ()]) == (8, 0, 8, 8)


def test_threads(recording):
    """Sums of many threads are exact, in one cell a series."""
    tokens, depth = om.counter("tokens"), om.histogram("depth")

    def work():
        for i in range(2000):
            tokens.add(1)
            tokens.add(1, half=("a", "b")[i % 2])
            depth.record(i % 7)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert series(recording, "counter") == {
        ("tokens", ()): 16_000,
        ("tokens", (("half", "a"),)): 8_000,
        ("tokens", (("half", "b"),)): 8_000,
    }
    cells = series(recording, "histogram")["depth", ()]
    zeros = 8 * len(range(0, 2000, 7))
    assert head(cells) == (8 * sum(i % 7 for i in range(2000)), zeros, 0, 6)
    assert sum(buckets(cells).values()) == 16_000 - zeros


def test_signal_handlers(recording):
    """Recording in a signal handler that interrupts recording loses nothing."""
    tokens, depth = om.counter("tokens"), om.histogram("depth")
    handled = count = 0

    def handle(number, frame):
        nonlocal handled
        handled += 1
        tokens.add(1)
        depth.record(3.0)

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        while handled < 200:
            tokens.add(1)
            depth.record(3.0)
            count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

    assert series(recording, "counter") == {("tokens", ()): count + handled}
    cells = series(recording, "histogram")["depth", ()]
    assert head(cells)[0] == 3.0 * (count + handled)
    assert sum(buckets(cells).values()) == count + handled


class FromGpu:
    """Like a tensor on a GPU: looking at its value would wait."""

    is_cuda = True

    def item(self):
        raise AssertionError("waited for the GPU")

    __float__ = __bool__ = __lt__ = __ge__ = item


@pytest.mark.parametrize(
    "value",
    ["x", None, math.nan, math.inf, -math.inf, 10**400, torch.tensor(1.0), FromGpu(), np.ones(2)],
    ids=["text", "none", "nan", "inf", "-inf", "huge", "tensor", "gpu", "array"],
)
@pytest.mark.parametrize("is_bound", [False, True])
def test_what_cannot_be_recorded(recording, value, is_bound):
    """No number, one without end, or a tensor is left out, without harm and without a look."""
    labels = {"lang": "de"} if is_bound else {}
    tokens, depth = om.counter("tokens").labels(**labels), om.gauge("depth").labels(**labels)
    length = om.histogram("length").labels(**labels)
    for _ in range(2):
        for record in (tokens.add, depth.set, length.record):
            record(2)
            record(value)

    key = tuple(labels.items())
    assert series(recording, "counter")["tokens", key] == 4
    assert series(recording, "gauge")["depth", key] == 2
    assert head(series(recording, "histogram")["length", key]) == (4, 0, 2, 2)


def test_negative(recording, said):
    """A counter and a histogram take no negative value, which is said once."""
    for _ in range(2):
        om.counter("tokens").add(-1)
        om.histogram("length").record(-0.5)

    assert recording.cells() == {}
    assert said() == [
        "tokens: a negative value is left out; use a gauge",
        "length: a negative value is left out; its buckets are for values from zero on",
    ]


def test_gauge_that_nobody_has_set(recording):
    """A gauge whose value could not be recorded has none."""
    om.gauge("depth").set(math.nan)

    assert recording.cells() == {}


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
    recording = start(rows=2048)
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
    recording = start(first_steps=1, keep_every=1000)
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


def test_too_many_label_sets(recording, said):
    """Label sets beyond the limit are added up in one series, said once; those before go on."""
    tokens, kinds = om.counter("many"), om.counter("kinds")
    for i in range(MOST_LABEL_SETS + 50):
        tokens.add(1, document=str(i))
    tokens.add(1, document="3")
    tokens.add(1)
    kinds.add(5, kind="late")
    kinds.add(6, kind="later")

    found = series(recording, "counter")
    assert found["many", OVERFLOW] == 50
    assert found["many", (("document", "3"),)] == 2
    assert found["many", ()] == 1
    assert found["kinds", OVERFLOW] == 11
    assert len(found) == MOST_LABEL_SETS + 3
    assert len([text for text in said() if "label sets" in text]) == 2


def test_too_many_instruments(recording, said):
    """Names beyond the limit count as ``other``, which is said once."""
    for i in range(instruments._MOST_INSTRUMENTS + 10):
        om.counter(f"c{i}").add(1)

    assert series(recording, "counter")["other", ()] == 10
    assert len(said()) == 1


def test_forked_child(recording):
    """A forked child records for itself, also through methods bound in the parent."""
    tokens = om.counter("tokens")
    tokens.add(1)
    add = tokens.add
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            add(10)
            tokens.add(100, lang="de")
            child = om.recorder.api.span.active()
            found = child.cells._shared
            total = sum(child.journal.floats[word + 1] for word in found.values())
            os.write(writing, str(total).encode())
            os.unlink(child.journal.path)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    tokens.add(2)

    assert status == 0
    assert os.read(reading, 100) == b"110.0"
    assert series(recording, "counter") == {("tokens", ()): 3}
    os.close(reading)
    os.close(writing)


KILLED = """
import os, struct, sys
import otel_mlperf as om
run = om.start("x", dir=sys.argv[1], agent="none", console=False, readings="none")
print(run._recorder.journal.path, flush=True)
tokens, length = om.counter("tokens"), om.histogram("length")
n = 0
while True:
    tokens.add(1, lang="de")
    length.record(n % 1000)
    n += 1
    os.pwrite(int(sys.argv[2]), struct.pack("<Q", n), 0)
"""


@pytest.mark.parametrize("after", [1, 300, 20_000])
def test_killed(tmp_path, after):
    """What was recorded when the process is killed is there, to the last value."""
    with (tmp_path / "count").open("w+b") as counted:
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(counted.fileno())]
        program = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, pass_fds=[counted.fileno()]
        )
        with program:
            path = program.stdout.readline().strip()
            while int.from_bytes(os.pread(counted.fileno(), 8, 0), "little") < after:
                assert program.poll() is None
            program.kill()
        n = int.from_bytes(os.pread(counted.fileno(), 8, 0), "little")
    reader = JournalReader(path)
    entries = reader.new_entries()
    found = {}
    for number_, *words in reader.cells().tolist():
        found.setdefault(entries[number_][2], []).append(words)
    reader.close()
    os.unlink(path)
    os.rmdir(os.path.dirname(path))

    ((total, *_),) = found["ml.user.tokens"]
    cells = found["ml.user.length"]
    recorded = sum(buckets(cells).values()) + head(cells)[1]
    assert number(total) in (n, n + 1)
    assert recorded in (n, n + 1)
    assert head(cells)[0] == pytest.approx(sum(i % 1000 for i in range(n)), abs=1000)


@pytest.mark.parametrize("make", [om.counter, om.gauge, om.histogram])
@pytest.mark.parametrize("name", ["", None])
def test_without_a_name(recording, said, make, name):
    """An instrument without a name is said, and records all the same."""
    made = make(name)
    getattr(made, made.method)(1)

    assert {key[1] for key in recording.cells()} == {"ml.user.unnamed"}
    assert said() == [f"{make.__name__}(): a name is expected; without one it counts as 'unnamed'"]
