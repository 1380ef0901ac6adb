"""Metrics that other libraries make through the OpenTelemetry API become series.

The API takes a provider once in a process, so it is tried with one that is not installed.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cell_values import buckets, head, series
from opentelemetry.metrics import CallbackOptions, Observation

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import Word
from otel_mlperf.recorder.api import instruments, otel_meter, otel_observed
from otel_mlperf.recorder.api.otel_meter import JournalMeterProvider
from otel_mlperf.recorder.api.otel_observed import ObservedWatch

SCOPE = (("otel.scope.name", "library"), ("otel.scope.version", "1.0"))


@pytest.fixture
def meter(monkeypatch):
    """A meter of a provider that knows no instruments of other tests."""
    monkeypatch.setattr(otel_meter, "_instruments", {})
    monkeypatch.setattr(otel_observed, "_asked", [])
    monkeypatch.setattr(instruments, "_instruments", {})
    return JournalMeterProvider().get_meter("library", "1.0", schema_url="")


def test_every_kind_under_its_own_name(recording, meter):
    """What a library records is there by the name, unit and attributes that it gave."""
    tokens = meter.create_counter("gen.tokens", "{token}", "Tokens.")
    tokens.add(5)
    tokens.add(2, {"lang": "de", "beam": 4})
    tokens.add(2, {"lang": "de", "beam": 4}, None)
    requests = meter.create_up_down_counter("requests")
    requests.add(3)
    requests.add(-1.5)
    depth = meter.create_gauge("depth", unit=None)
    depth.set(-7, attributes={"queue": "a"})
    wait = meter.create_histogram("wait", "s", explicit_bucket_boundaries_advisory=[1, 2])
    for value in (0.0, 0.5, 2.0):
        wait.record(value)

    assert series(recording, "counter") == {
        ("gen.tokens", ()): 5,
        ("gen.tokens", (("beam", "4"), ("lang", "de"))): 4,
    }
    assert series(recording, "updowncounter") == {("requests", ()): 1.5}
    assert series(recording, "gauge") == {("depth", (("queue", "a"),)): -7}
    ((key, cells),) = series(recording, "histogram").items()
    assert key == ("wait", ())
    assert head(cells) == (2.5, 1, 0.0, 2.0)
    assert sum(buckets(cells).values()) == 2
    assert ("counter", "gen.tokens", "{token}", SCOPE) in recording.cells()


def test_values_that_cannot_be_taken(recording, meter, said):
    """Values and attributes of any kind harm nothing; what is left out is said."""
    counter, up = meter.create_counter("c"), meter.create_up_down_counter("u")
    for value in (-1, None, "7", float("nan"), 10**400, torch.ones(1), np.float64(2), True):
        counter.add(value)
        up.add(value)
    for attributes in (7, [1], np.zeros(2), {}, {3: object()}, {"a": None}):
        counter.add(1, attributes)

    assert series(recording, "counter")["c", ()] == 2 + 1 + 5
    assert series(recording, "updowncounter")["u", ()] == -1 + 2 + 1
    assert any("negative" in text for text in said())


def test_sums_go_on_in_the_next_run_from_zero(start, meter):
    """An instrument outlives a run; before and after one it does nothing."""
    up = meter.create_up_down_counter("u")
    up.add(100)
    for _ in range(2):
        recording = start()
        up.add(2)
        up.add(-1)
        assert series(recording, "updowncounter") == {("u", ()): 1}
        om.stop()
        up.add(50)


def test_same_name_is_the_same_instrument(recording, meter, said):
    """Of all libraries; another kind or unit of a name is said, and nothing of it is lost."""
    meter.create_counter("n", "By").add(1)
    JournalMeterProvider().get_meter("other").create_counter("n", "s").add(1)
    meter.create_histogram("n").record(1.0)

    assert series(recording, "counter") == {("n", ()): 2}
    assert list(series(recording, "histogram")) == [("n.histogram", ())]
    assert sorted(said()) == [
        "n already exists as a counter; the histogram is published as n.histogram",
        "n already has the unit 'By'; the unit 's' is ignored",
    ]


@pytest.mark.parametrize("name", [names.STEP_DURATION.name, "ml.user.tokens"])
def test_names_of_this_package_stay_its_own(recording, meter, said, name):
    """A library's metric of the name of one of ours is published apart from it, which is said."""
    meter.create_counter(name).add(1)
    om.counter("tokens").add(5)

    assert (f"ml.user.{name}", SCOPE) in {key[1::2] for key in recording.cells()}
    assert series(recording, "counter")["tokens", ()] == 5
    assert [text for text in said() if f"published as ml.user.{name}" in text]


def test_names_that_are_none(recording, meter, said):
    """What is no name is one all the same."""
    meter.create_counter(None).add(1)
    meter.create_gauge(["a"], object()).set(2)

    assert series(recording, "counter") == {("unnamed", ()): 1}
    assert list(series(recording, "gauge").values()) == [2]


# -- what is asked for -------------------------------------------------------------------------


class Clock:
    """A clock that a test turns."""

    now = 10**9

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def asked(clock):
    """What asks observable instruments, by that clock."""
    return ObservedWatch(clock)


def test_observable_instruments_are_asked(recording, meter, asked):
    """Each kind has what its callback says, a total as it is."""
    meter.create_observable_counter("ticks", [lambda _: [Observation(7), Observation(3, {"c": 1})]])
    meter.create_observable_up_down_counter("open", [lambda _: [Observation(-2)]])

    def depth(options: CallbackOptions):
        assert options.timeout_millis > 0
        yield Observation(0.5, {"queue": "a"})

    meter.create_observable_gauge("depth", [depth], unit="1")
    asked.ask_all()
    asked.ask_all()

    assert series(recording, "counter") == {("ticks", ()): 7, ("ticks", (("c", "1"),)): 3}
    assert series(recording, "updowncounter") == {("open", ()): -2}
    assert series(recording, "gauge") == {("depth", (("queue", "a"),)): 0.5}


def test_generators_are_asked(recording, meter, asked):
    """A generator says one list a turn, beginning with its first, and may end."""

    def turns():
        options = yield
        for value in (1, 2):
            assert isinstance(options, CallbackOptions)
            options = yield [Observation(value)]

    meter.create_observable_gauge("g", [turns()])
    seen = []
    for _ in range(4):
        asked.ask_all()
        seen.append(series(recording, "gauge")["g", ()])
    assert seen == [1, 2, 2, 2]


@pytest.mark.parametrize("failure", [KeyError("x"), SystemExit(3)], ids=["error", "exit"])
def test_callback_that_fails(recording, meter, asked, said, failure):
    """Its failure is counted and said once as the program's own; the others are asked."""

    def broken(_):
        raise failure

    meter.create_observable_gauge("a", [broken, lambda _: None, lambda _: [Observation(1)]])
    meter.create_observable_gauge("b", [lambda _: [7], lambda _: [Observation("x")]])
    meter.create_observable_gauge("c", [lambda _: [Observation(3)]])
    meter.create_observable_gauge("d")
    asked.ask_all()
    asked.ask_all()

    assert series(recording, "gauge") == {("a", ()): 1, ("c", ()): 3}
    assert recording.word(Word.CALLBACK_ERRORS) == 4
    assert len([text for text in said() if "broken failed" in text]) == 1


def test_endless_callback(recording, meter, asked):
    """A callback that never stops to say values is left after some."""

    def endless(_):
        while True:
            yield Observation(1)

    meter.create_observable_gauge("a", [endless])
    asked.ask_all()
    assert series(recording, "gauge") == {("a", ()): 1}


def test_how_often_it_is_asked(recording, meter, asked, clock):
    """Every five seconds at most; a slow callback takes a thousandth of the time at most."""
    calls, takes = [], [0]

    def callback(_):
        calls.append(clock.now)
        clock.now += takes[0]
        return [Observation(1)]

    asked.look()
    meter.create_observable_gauge("g", [callback])
    for passed_s in (0, 1, 3, 1, 0):
        clock.now += passed_s * 10**9
        asked.look()
    assert [call - calls[0] for call in calls] == [0, 5 * 10**9]

    clock.now += 5 * 10**9
    takes[0] = 10**8
    asked.look()
    assert len(calls) == 3
    clock.now += 99 * 10**9
    asked.look()
    assert len(calls) == 3
    clock.now += 2 * 10**9
    asked.look()
    assert len(calls) == 4


def test_asked_before_steps_and_at_the_end(start, meter):
    """In a run they are asked when a step is about to begin, outside it, and when the run ends."""
    values = iter(range(100))
    sections = []

    def callback(_):
        with om.span("asked"):
            sections.append(len(recording.recorder.stepping.open))
        return [Observation(next(values))]

    meter.create_observable_gauge("g", [callback])
    recording = start()
    otel_observed.watch(recording.run)
    with om.step():
        pass
    assert series(recording, "gauge") == {("g", ()): 0}
    recording.run.stop()

    assert series(recording, "gauge") == {("g", ()): 1}
    assert sections == [0, 0]
    assert {row.root for row in recording.sections("asked")} == {recording.span}
