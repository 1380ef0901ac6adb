"""Counters, gauges and histograms of the program contain exactly what was recorded."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from cell_values import head, series

import otel_mlperf as om
from otel_mlperf.journal.layout import MAX_LABEL_SETS
from otel_mlperf.recorder.api import instruments

OVERFLOW = (("otel.metric.overflow", "true"),)


@pytest.fixture(autouse=True)
def _no_instruments(monkeypatch):
    """No test knows the instruments of another."""
    monkeypatch.setattr(instruments, "_instruments", {})


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
    """A mapping behind the value means the same labels; what is none is left out and said.

    Also once the instrument has been used without any.
    """
    counter, gauge, histogram = om.counter("c"), om.gauge("g"), om.histogram("h")
    counter.add(0), gauge.set(0), histogram.record(0)
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
    assert said() == ["c: expected labels as keyword arguments, e.g. lang='de'; found 'de'"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_value_that_is_no_finite_number_is_said(recording, said, value):
    """It changes nothing, and is not left out in silence."""
    om.gauge("depth").set(3)
    om.gauge("depth").set(value)

    assert series(recording, "gauge") == {("depth", ()): 3}
    assert said() == [f"depth: {value} is ignored; use log() for such values"]


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
    assert said() == ["clash already exists as a counter; the gauge is published as clash.gauge"]


def test_other_unit(said):
    """A second unit for a name is left out, which is said."""
    assert om.counter("in bytes", "By") is om.counter("in bytes", "s")
    assert said() == ["in bytes already has the unit 'By'; the unit 's' is ignored"]


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


def test_too_many_label_sets(recording, said):
    """Label sets beyond the limit are added up in one series, said once; those before go on."""
    tokens, kinds = om.counter("many"), om.counter("kinds")
    for i in range(MAX_LABEL_SETS + 50):
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
    assert len(found) == MAX_LABEL_SETS + 3
    assert len([text for text in said() if "label sets" in text]) == 2


def test_too_many_instruments(recording, said):
    """Names beyond the limit count as ``other``, which is said once."""
    for i in range(instruments._MOST_INSTRUMENTS + 10):
        om.counter(f"c{i}").add(1)

    assert series(recording, "counter")["other", ()] == 10
    assert len(said()) == 1


@pytest.mark.parametrize("make", [om.counter, om.gauge, om.histogram])
@pytest.mark.parametrize("name", ["", None])
def test_without_a_name(recording, said, make, name):
    """An instrument without a name is said, and records all the same."""
    made = make(name)
    getattr(made, made.method)(1)

    assert {key[1] for key in recording.cells()} == {"ml.user.unnamed"}
    assert said() == [
        f"{make.__name__}(): a name is required; this instrument is counted as 'unnamed'"
    ]
