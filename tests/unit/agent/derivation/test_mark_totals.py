"""The program's counters arrive as recorded, over processes, labels and restarts."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from by_hand import Program, agent_folder
from hypothesis import given
from hypothesis import strategies as st

import otel_mlperf as om
from otel_mlperf.agent.intake.tail import Tail
from otel_mlperf.agent.lifecycle.agent_loop import Agent
from otel_mlperf.agent.model.agent_options import Options
from otel_mlperf.agent.model.distribution import Distribution
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.otlp.histogram import ExponentialBuckets
from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from otel_mlperf.recorder.lifecycle.run import Run


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose journal a test reads."""
    monkeypatch.setattr("otel_mlperf.recorder.api.instruments._instruments", {})
    with om.start("digits", dir=tmp_path / "runs", agent="none", console=False, trace_first=1,
                  trace_every=1000, readings="none") as run:  # fmt: skip
        yield run


def read(run: Run, **options) -> Agent:
    """An agent that has looked at the run's journal once."""
    journal = run._recorder.journal
    given = Options(policy=Policy(trace_first=1, trace_every=1000), sources=frozenset(), **options)
    agent = Agent(
        agent_folder(run._recorder.meta),
        Tail(Path(journal.path).parent, {journal.path: journal.buffer}),
        given,
    )
    agent.tick()
    agent.mark()
    return agent


def series(agent: Agent) -> dict:
    (rank,) = agent._state.ranks.values()
    return {
        (one.metric, *one.labels.items()): one
        for one in rank.series.values()
        if one.metric.startswith("ml.user.")
    }


def test_labels_arrive(run):
    """Each label set is a series with its labels; gauges are as they were set last."""
    om.counter("tokens").add(3, lang="de")
    om.counter("tokens").add(4, lang="en")
    om.gauge("depth").set(7)
    om.gauge("depth").set(5)
    om.gauge("never").set(math.nan)

    found = series(read(run))
    assert {key: one.value for key, one in found.items()} == {
        ("ml.user.tokens", ("lang", "de")): 3,
        ("ml.user.tokens", ("lang", "en")): 4,
        ("ml.user.depth",): 5,
    }


def test_what_goes_up_and_down_adds_up_while_it_lasts(journals, run_folder, agent_of):
    """It is the sum over the processes of a rank that live, whatever one that ended had counted."""
    programs = [Program(journals, run_folder)]
    programs.append(Program(journals, run_folder, name="0-2-1", is_child=True))
    for program, value in zip(programs, (5.0, -7.0), strict=True):
        entry = program.journal.entry(["cell", "updowncounter", "requests", "1", []])
        program.journal.floats[program.journal.cell(entry) + 1] = value
    agent = agent_of(*programs)
    agent.tick()
    agent.mark()
    (rank,) = agent._state.ranks.values()
    (one,) = (one for one in rank.series.values() if one.metric == "requests")
    assert one.value == -2.0
    assert rank.user["requests"] == ["1", "updowncounter"]

    programs[1].stop(10)
    agent.tick()
    agent.mark()
    agent.mark()
    assert one.value == 5.0


def test_histogram_arrives(run):
    """A histogram has count, sum, least, most and buckets of what was recorded."""
    values = [0.0, 0.3, 0.3, 1.0, 17.0]
    for value in values:
        om.histogram("length", "s").record(value, lang="de")

    found = series(read(run))["ml.user.length", ("lang", "de")].buckets
    same = ExponentialBuckets(scale=3)
    same.record(np.array(values))
    assert found == same


def test_histogram_with_explicit_buckets(run):
    """Where explicit buckets are asked for, each value is under the next power of two."""
    for value in (0.0, 0.3, 1.0, 1.01, 2.0**30):
        om.histogram("length").record(value)

    found = series(read(run, explicit=True))["ml.user.length",].buckets
    counts = dict(zip((*found.bounds, math.inf), found.counts, strict=True))
    assert {bound: n for bound, n in counts.items() if n} == {
        2.0**-10: 1, 0.5: 1, 1.0: 1, 2.0: 1, math.inf: 1,
    }  # fmt: skip


def test_exemplar_arrives_once(run):
    """The example of a histogram names a span and trace that are kept, and is sent once."""
    with om.step(), om.span("work"):
        om.histogram("length").record(2.5)
    agent = read(run)
    agent.mark()
    agent.flush(time.time_ns())

    (example,) = series(agent)["ml.user.length",].exemplars
    (row,) = Store(run.path).records("SELECT trace_id, span_id FROM spans WHERE name = 'work'")
    assert (example.trace_id.hex(), f"{example.span_id:016x}") == (row["trace_id"], row["span_id"])
    assert example.value == 2.5


def test_example_that_was_not_written_whole(journals, run_folder, agent_of):
    """An example whose parts do not belong together is no example; the values count."""
    program = Program(journals, run_folder)
    number = program.journal.entry(["cell", "histogram", "ml.user.length", "", []])
    head, example, bucket = (program.journal.cell(number) for _ in range(3))
    program.journal.floats[head + 1] = 2.0
    program.journal.floats[head + 3] = program.journal.floats[head + 4] = 2.0
    program.journal.words[head + 7] = 1
    program.journal.floats[example + 1] = 2.0
    program.journal.words[example + 3] = program.journal.words[example + 4] = program.run
    program.journal.words[example + 7] = 2
    program.journal.words[bucket + 1] = 1
    program.journal.words[bucket + 7] = 1 << 32
    agent = agent_of(program)
    agent.tick()
    agent.mark()

    found = series(agent)["ml.user.length",]
    assert (found.exemplars, found.buckets.count, found.buckets.counts) == ([], 1, [1])
    agent.finish()
    program.journal.release()


def test_sum_over_processes(journals, run_folder, agent_of):
    """A rank's counters and histograms are those of all its processes, also of ended ones."""
    programs = [
        Program(journals, run_folder),
        Program(journals, run_folder, name="0-2-1", is_child=True),
    ]
    for n, one in enumerate(programs, 1):
        for kind in ("counter", "histogram"):
            pairs = [["lang", "de"]]
            number = one.journal.entry(["cell", kind, f"ml.user.{kind}", "", pairs])
            word = one.journal.cell(number)
            one.journal.floats[word + 1] = float(n)
            one.journal.words[word + 7] = kind == "histogram"
            one.journal.words[word + 2] = 10 * n if kind == "histogram" else 0
    agent = agent_of(*programs)
    agent.tick()
    agent.mark()
    alive = summed(agent)
    programs[1].stop(10.0)
    agent.tick()
    agent.mark()
    agent.mark()

    assert alive == summed(agent) == (3, 30, 3.0, 30)
    agent.finish()
    for one in programs:
        one.journal.release()


def summed(agent: Agent) -> tuple:
    """Value of the counter; count, sum and zeros of the histogram."""
    found, labels = series(agent), ("lang", "de")
    buckets = found["ml.user.histogram", labels].buckets
    value = found["ml.user.counter", labels].value
    return value, buckets.count, buckets.sum, buckets.zero_count


def test_tables_hold_what_was_recorded(run):
    """The run folder has each series: a histogram as its count and sum."""
    om.counter("tokens").add(3, lang="de")
    om.histogram("length").record(1.5)
    om.histogram("length").record(2.5)
    agent = read(run)
    agent.flush(time.time_ns())

    rows = Store(run.path).records(
        "SELECT DISTINCT name, labels, value FROM readings WHERE name LIKE 'ml.user.%' ORDER BY 1"
    )
    assert [(row["name"], row["labels"], row["value"]) for row in rows] == [
        ("ml.user.length.count", "{}", 2.0),
        ("ml.user.length.sum", "{}", 4.0),
        ("ml.user.tokens", '{"lang": "de"}', 3.0),
    ]


def test_tables_say_what_each_instrument_is(run):
    """Once: kind and unit, which its readings do not have."""
    om.counter("tokens", "{token}").add(3, lang="de")
    om.gauge("depth").set(2)
    agent = read(run)
    om.counter("tokens", "{token}").add(3, lang="en")
    om.histogram("length", "s").record(1.5)
    agent.mark()
    agent.flush(time.time_ns())

    rows = Store(run.path).rows(
        "SELECT name, unit, kind FROM instruments WHERE name LIKE 'ml.user.%' ORDER BY name"
    )
    assert rows == [
        ("ml.user.depth", "", "gauge"),
        ("ml.user.length", "s", "histogram"),
        ("ml.user.tokens", "{token}", "counter"),
    ]


def test_readings_beyond_the_limit_keep_their_own_label(run, monkeypatch):
    """What is added up in the series of the rest is not told as if one label set had it all."""
    om.counter("tokens").add(2, lang="de")
    agent = read(run)
    (rank,) = agent._state.ranks.values()
    monkeypatch.setattr("otel_mlperf.agent.derivation.mark_totals._MAX_SERIES", len(rank.places))
    for lang in ("en", "fr"):
        om.counter("tokens").add(2, lang=lang)
    agent._state.totalled_ns = 0
    agent.mark()
    agent.flush(time.time_ns())

    rows = Store(run.path).rows(
        "SELECT DISTINCT labels, value FROM readings WHERE name = 'ml.user.tokens' ORDER BY value"
    )
    assert rows == [('{"lang": "de"}', 2.0), ('{"otel.metric.overflow": "true"}', 4.0)]


distributions = st.builds(
    Distribution,
    st.floats(0, 1e9),
    st.integers(0, 9),
    st.just(0.5),
    st.just(9.0),
    st.dictionaries(st.integers(-8600, 8200), st.integers(1, 99), max_size=8),
)


@given(distributions, distributions)
def test_adding_distributions_loses_nothing(one, other):
    """Together they have the counts of both; what is sent has them all, in 160 buckets at most."""
    both = one.plus(other)
    sent = both.buckets()

    assert both.count == one.count + other.count == sent.count
    assert sum(sent.counts) + sent.zero_count == both.count
    assert len(sent.counts) <= 160
    assert sent.scale <= 3
