"""A run starts clearly, keeps what it is given, and ends once."""

from __future__ import annotations

import json
import sys
import threading
from types import SimpleNamespace

import pytest

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.layout import Kind, State, Word
from otel_mlperf.recorder.sections.section_context import CURRENT


def test_run_section(recording):
    """A run begins with its own row and ends with its section, named by the vocabulary."""
    (begin,) = recording.rows(Kind.BEGIN)
    om.stop()
    row = recording.one(names.SPAN_RUN)

    assert (begin.span, begin.end, begin.root, begin.parent) == (row.span, 0, 0, 0)
    assert (row.category, row.phase, row.parent, row.root) == (names.RUN, "", 0, row.span)
    assert recording.word(Word.STATE) == State.CLOSED


def test_second_start(recording):
    """A second start while a run is active raises at once, and says what to do."""
    with pytest.raises(om.RunActive, match="still active in this process; stop"):
        om.start("second")

    assert om.span("still").__enter__() is not None
    om.stop()


def test_second_start_in_a_notebook(start, monkeypatch, said):
    """In a notebook a second start finishes the first run, and says so."""

    class ZMQInteractiveShell:
        pass

    class IPython:
        get_ipython = ZMQInteractiveShell

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    first = start("first")
    second = start("second")

    assert first.word(Word.STATE) == State.CLOSED
    assert second.word(Word.STATE) == State.RUNNING
    assert "'first' is finished" in said()[0]


def test_stop_is_idempotent(recording):
    """Stopping again, by any way, does nothing."""
    with recording.run as run:
        run.stop()
        run.stop()
        om.stop()

    assert len(recording.sections("run")) == 1
    om.stop()


def test_nothing_after_stop(recording):
    """What comes after the stop, also from sections that were open, leaves no row."""
    outer = om.span("outer")
    outer.__enter__()
    om.stop()
    rows = len(recording.rows())
    with om.span("late"):
        pass
    outer.set(a=1)
    outer.__exit__(None, None, None)
    om.log(loss=1)
    om.counter("c").add(1)

    assert len(recording.rows()) == rows
    assert recording.open() == []


def test_failed_run(start):
    """An exception that leaves the run's block is recorded on the run and goes on."""
    recording = start()
    beside = om.span("beside")
    thread = threading.Thread(target=beside.__enter__)
    thread.start()
    thread.join()
    with pytest.raises(KeyError), recording.run, om.step(), om.span("forward"):
        raise KeyError("x")

    for name in ("forward", "train.step", "run", "beside"):
        assert recording.one(name).error[:2] == ["KeyError", "'x'"]


def test_result(recording):
    """Results are on the run's last row, the later value winning."""
    recording.run.result(accuracy=0.5, note="a")
    recording.run.result(accuracy=0.9)
    om.stop()

    assert recording.one("run").attributes == {
        f"{names.RESULT}accuracy": 0.9,
        f"{names.RESULT}note": "a",
    }


def test_context_after_stop(start):
    """The context is as it was before the run."""
    before = CURRENT.get()
    with start().run:
        assert CURRENT.get() is not before

    assert CURRENT.get() is before


def test_runs_after_each_other(start):
    """A sweep: each start is a run of its own, with its own journal and folder."""
    recordings = []
    for i in range(3):
        recordings.append(start("sweep"))
        with om.step(), om.span(f"work {i}"):
            pass
        om.stop()

    assert len({r.run.id for r in recordings}) == 3
    assert len({r.run.path for r in recordings}) == 3
    for i, recording in enumerate(recordings):
        assert recording.one(f"work {i}").root == recording.one("train.step").span
        assert recording.numbers() == [0]


@pytest.mark.fault("F60")
def test_wrong_arguments(tmp_path):
    """Wrong settings raise before any work is done."""
    with pytest.raises(om.ConfigError, match="did you mean 'console'"):
        om.start(consol=False, dir=tmp_path / "runs")
    with pytest.raises(om.ConfigError, match="'nothing'"):
        om.start(agent="nothing", dir=tmp_path / "runs")

    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": "5"}, "step is '5', expected a whole number"),
        ({"step": 1.5}, "step is 1.5"),
        ({"step": True}, "step is True"),
        ({"params": [1]}, "params is a list, expected a mapping"),
        ({"tags": 3}, "tags is a int, expected a list of words"),
        ({"name": 3}, "name is 3, expected a text"),
        ({"config": 3}, "config is 3, expected a Config, a mapping or a YAML"),
    ],
)
def test_wrong_facts(tmp_path, arguments, message):
    """What a run is told is checked before any work is done."""
    with pytest.raises(om.ConfigError, match=message):
        om.start(**{"name": "x", "dir": tmp_path / "runs", "agent": "none"} | arguments)

    assert not (tmp_path / "runs").exists()


def test_one_tag(start):
    """A text given as tags is one of them."""
    path = start(tags="abc").run.path

    assert json.loads((path / "run.json").read_text())["tags"] == ["abc"]


@pytest.mark.parametrize("how", ["ps1", "flag", "IPython"])
def test_second_start_while_typing(start, monkeypatch, said, how):
    """Where somebody types the program a second start finishes the first run, and says so."""
    if how == "ps1":
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    elif how == "flag":
        monkeypatch.setattr(sys, "flags", SimpleNamespace(interactive=1, verbose=0))
    else:
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=object))
    first = start("first")
    start("second")

    assert first.word(Word.STATE) == State.CLOSED
    assert "'first' is finished" in said()[0]


def test_refused_start_is_not_the_runs_failure(recording):
    """A run that keeps another one from starting has not failed with that."""
    with pytest.raises(om.RunActive) as raised:
        om.start("second")
    sys.excepthook(om.RunActive, raised.value, None)
    om.stop()

    assert not recording.one("run").is_error


def test_repr(recording):
    """A run tells its name, id and state."""
    assert "active" in repr(recording.run)
    om.stop()
    assert "finished" in repr(recording.run)
    assert "test" in repr(recording.run)


def test_full_ring_counts_sections_alone(start):
    """Begin, cancel and foreign rows that are dropped are no sections that were lost."""
    recording = start(journal_rows=2048)
    made = 0
    for _ in range(2000):
        with om.step(), om.span("work"):
            made += 2
        for _ in om.steps(()):
            raise AssertionError
    kept = len(recording.sections())

    assert kept + recording.word(Word.LOST_RING_FULL) == made
    assert recording.word(Word.LOST_FRAME) > 2000


def test_what_was_profiled_is_a_table_in_the_program(start):
    """Of a call that has ended, while the run goes on: to print, and as data."""
    recording = start()

    def search(depth):
        return sorted(range(depth), key=lambda at: -at)

    om.span("search", profile="calls")(search)(2_000)
    with om.span("other", profile="calls"):
        search(10)

    hot = recording.run.hot("search")
    assert str(hot).startswith("search: 1 profiled call, ")
    (section,) = hot.sections
    assert {spot.calls for spot in section.spots if "lambda" in spot.name} == {2_000}
    assert [one.section for one in recording.run.hot().sections] == ["search", "other"]
