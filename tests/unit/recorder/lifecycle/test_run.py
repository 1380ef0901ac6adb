"""Does a run begin clearly, hold what it is told, and end once?"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.journal_folder import journal_folder
from otel_mlperf.journal.layout import Kind, State, Word
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.recorder.sections.section_context import CURRENT


def test_run_section(recording):
    """A run begins with its own row and ends with its section, named by the vocabulary."""
    (begin,) = recording.rows(Kind.BEGIN)
    om.stop()
    row = recording.one(names.SPAN_RUN)

    assert (begin.span, begin.end, begin.root, begin.parent) == (row.span, 0, 0, 0)
    assert (row.category, row.phase, row.parent, row.root) == (names.RUN, "", 0, row.span)
    assert recording.word(Word.STATE) == State.CLOSED


@pytest.mark.parametrize("error", [None, ValueError("no")])
def test_run_that_ends_in_a_full_journal_waits_for_room(start, monkeypatch, error):
    """Its own row says how it ended; a header word does where there is no room to the last."""
    recording = start(rows=2048)
    recorder, none = recording.recorder, recording.recorder.config
    monkeypatch.setattr("otel_mlperf.recorder.lifecycle.closing._ROOM_S", 60.0)
    for _ in range(3000):
        with om.span("tiny"):
            pass

    def make_room():
        while not recording.word(Word.END_TIME):
            os.sched_yield()
        assert not recording.sections(names.SPAN_RUN)
        recording.reader.free()
        recorder.config = none

    recorder.config = dataclasses.replace(none, agent="process")
    reader = threading.Thread(target=make_room)
    reader.start()
    recording.run.__exit__(type(error), error, None)
    reader.join()

    row = recording.one(names.SPAN_RUN)
    assert row.end == recording.word(Word.END_TIME)
    assert row.is_error == bool(recording.word(Word.FAILED)) == bool(error)


def test_run_json(start):
    """The run folder holds name, id, parameters and tags from the beginning."""
    recording = start("digits", params={"lr": 0.1, "model": object}, tags=["a", "b"])
    run = recording.run

    about = json.loads((run.path / "run.json").read_text())
    assert run.path.name == f"digits-{run.id[:4]}"
    assert (about["id"], about["name"], about["tags"]) == (run.id, "digits", ["a", "b"])
    assert about["params"]["lr"] == 0.1
    assert (about["world_size"], about["format"]) == (1, 1)
    assert about["started_ns"] > 0
    assert os.stat(run.path).st_mode & 0o777 == 0o700


def test_meta(start, monkeypatch):
    """The journal says which process wrote it, and the anchor of its clocks."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab%20one, team=vision")
    meta = start("digits", service_name="trainer").reader.meta

    assert isinstance(meta, JournalMeta)
    assert (meta.run_name, meta.service, meta.pid) == ("digits", "trainer", os.getpid())
    assert (meta.rank, meta.local_rank, meta.world_size, meta.restart) == (0, 0, 1, 0)
    assert meta.resource == {"deployment.environment": "lab one", "team": "vision"}
    assert 0 < meta.cost_ns < 1_000_000
    assert meta.unix_ns > meta.monotonic_ns > 0
    assert not meta.is_child


def test_meta_says_which_devices_the_process_saw(start, monkeypatch):
    """As its environment said at the start; a list that the journal has no room for is left out."""
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2,GPU-3")
    assert start("one").reader.meta.visible == {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-3"}
    om.stop()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(1000))))

    assert start("other").reader.meta.visible == {}


def test_name_of_the_script(start, monkeypatch):
    """Without a name the run is called like the script."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys, "argv", ["/some/where/train_digits.py", "--lr"])

    assert start(None).run.name == "train_digits"


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


def test_open_sections_at_stop(recording):
    """Sections that are open when the run stops end with it, of all threads."""
    go_on, is_open = threading.Event(), threading.Event()

    def work():
        with om.span("beside"):
            is_open.set()
            go_on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    with om.span("outer"), om.step(), om.span("inner"):
        om.stop()
    go_on.set()
    thread.join()

    for name in ("outer", "train.step", "inner", "beside", "run"):
        assert not recording.one(name).is_error
    assert recording.one("inner").parent == recording.one("train.step").span
    assert recording.open() == []


def test_section_that_is_about_to_end_at_stop(recording):
    """A thread that has written its row, and not yet cleared its entry, ends its section once."""
    go_on, is_open = threading.Event(), threading.Event()

    def work():
        with om.span("beside") as section:
            more = (section.sid, 0, recording.span, section.track, section.entry, Kind.SECTION)
            recording.journal.put(section.t0, section.t0 + 1, *more)
            is_open.set()
            go_on.wait()

    thread = threading.Thread(target=work)
    thread.start()
    is_open.wait()
    om.stop()
    go_on.set()
    thread.join()

    row = recording.one("beside")
    assert row.end == row.start + 1
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


def test_given_id_twice(start):
    """The k-th run under a given id gets ``.k``."""
    first = start(run_id="job-7").run
    om.stop()
    second = start(run_id="job-7").run

    assert (first.id, second.id) == ("job-7", "job-7.2")
    assert first.path != second.path


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
        monkeypatch.setattr(sys, "flags", SimpleNamespace(interactive=1))
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


def test_folder_that_cannot_be_made(tmp_path):
    """A run folder that cannot be created is said at once, with the way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(om.ConfigError, match="set OTEL_MLPERF_DIR"):
        om.start("x", dir=tmp_path / "file", agent="none")


def test_repr(recording):
    """A run tells its name, id and state."""
    assert "active" in repr(recording.run)
    om.stop()
    assert "finished" in repr(recording.run)
    assert "test" in repr(recording.run)


def test_no_room_in_shared_memory(start, said):
    """Where shared memory refuses, the journal is in the run folder, with a word."""
    folder = journal_folder("taken", "")
    os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
    Path(folder).write_text("in the way")
    try:
        recording = start(run_id="taken")
    finally:
        os.unlink(folder)

    assert recording.journal.path.startswith(str(recording.run.path))
    assert "the journal goes to the run folder" in said()[0]


def test_small_journal(start):
    """A full journal drops the newest sections and counts them."""
    recording = start(rows=2048)
    for _ in range(5000):
        with om.span("work"):
            pass

    kept = len(recording.sections("work"))
    assert 0 < kept < 5000
    assert kept + recording.word(Word.LOST_RING_FULL) == 5000


def test_full_ring_counts_sections_alone(start):
    """Begin, cancel and foreign rows that are dropped are no sections that were lost."""
    recording = start(rows=2048)
    made = 0
    for _ in range(2000):
        with om.step(), om.span("work"):
            made += 2
        for _ in om.steps(()):
            raise AssertionError
    kept = len(recording.sections())

    assert kept + recording.word(Word.LOST_RING_FULL) == made
    assert recording.word(Word.LOST_FRAME) > 2000


def test_large_metadata(monkeypatch, tmp_path):
    """Resource attributes that do not fit are an error at the start, not later."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "a=" + "x" * 5000)
    with pytest.raises(om.JournalError, match="shorten OTEL_RESOURCE_ATTRIBUTES"):
        om.start("x", dir=tmp_path, agent="none", run_id="large-metadata")

    assert list(tmp_path.iterdir()) == []
    assert not os.path.exists(journal_folder("large-metadata", ""))


def test_random_states(start):
    """Recording leaves every random stream where it was, also where ids are made."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    recording = start()
    for x in om.steps([torch.zeros(2)] * 3):
        with om.span("forward", rows=len(x)):
            om.log(loss=x.sum())
    om.stop()

    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after
    assert len({row.span for row in recording.sections()}) == len(recording.sections())


def test_ids_do_not_follow_the_seed(start):
    """Runs with the same seed share no span id."""
    found = []
    for _ in range(2):
        random.seed(42)
        recording = start()
        with om.span("work"):
            pass
        om.stop()
        found.append({row.span for row in recording.sections()})

    assert not found[0] & found[1]


def test_meta_is_messagepack(recording):
    """The metadata can be read by anybody: MessagePack of named fields."""
    text = msgspec.msgpack.encode(recording.recorder.meta)

    assert msgspec.msgpack.decode(text)["run_name"] == "test"
