"""The start of a run sets up everything, or handles what fails."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

import otel_mlperf as om
from otel_mlperf.journal.journal_folder import journal_folder
from otel_mlperf.journal.layout import Word
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.run_files.run_file import write_run_file
from otel_mlperf.store.run_folders import list_runs
from otel_mlperf.store.run_query import run_query_in_process


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


def test_given_id_twice(start):
    """The k-th run under a given id gets ``.k``."""
    first = start(run_id="job-7").run
    om.stop()
    second = start(run_id="job-7").run

    assert (first.id, second.id) == ("job-7", "job-7.2")
    assert first.path != second.path


@pytest.mark.fault("F40")
def test_folder_that_cannot_be_made(tmp_path):
    """A run folder that cannot be created is said at once, with the way out."""
    (tmp_path / "file").write_text("")
    with pytest.raises(om.ConfigError, match="set OTEL_MLPERF_DIR"):
        om.start("x", dir=tmp_path / "file", agent="none")


@pytest.mark.fault("F40", "F60")
@pytest.mark.parametrize(
    "name",
    ["file", "file/below", "gone/below", "loop", "n" * 300],
)
def test_a_folder_that_the_environment_names_ends_no_job(tmp_path, monkeypatch, said, name):
    """One sentence says why nothing is recorded: there is no place."""
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("/nowhere/at/all")
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / name))
    with om.start("x", agent="none") as run, om.span("work"):
        pass

    assert run._recorder is None
    message = said()[-1]
    assert "set OTEL_MLPERF_DIR to a writable" in message
    assert message.endswith("nothing is recorded")


@pytest.mark.parametrize("name", ["d\udce9", "d\udce8/below"])
def test_a_folder_named_in_bytes_has_the_run(tmp_path, monkeypatch, said, name):
    """Its path in journals and tables is text: a link in shared memory, each folder its own."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path / name))
    with om.start("x", agent="thread", console=False) as run, om.span("work"):
        pass

    assert said() == []
    str(run.path).encode()
    monkeypatch.chdir(tmp_path / name)
    (stored,) = list_runs(tmp_path / name)
    assert stored.path.samefile(run.path)
    assert run_query_in_process(stored, "SELECT name FROM sections WHERE name = 'work'").rows == [
        ["work"]
    ]
    run.path.parent.unlink()  # the link, in shared memory


@pytest.mark.fault("F99")
def test_no_room_in_shared_memory(start, said, tmp_path):
    """Where shared memory refuses, the journal is in the run folder, with a word."""
    run_folder = tmp_path / "runs" / "test-taken"
    run_folder.mkdir(parents=True)
    write_run_file(str(run_folder), {"id": "taken"})
    folder = journal_folder("taken", str(run_folder))
    os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
    Path(folder).write_text("in the way")
    try:
        recording = start(run_id="taken")
    finally:
        os.unlink(folder)

    assert recording.journal.path.startswith(str(recording.run.path))
    assert "the journal is stored in the run folder" in said()[0]


@pytest.mark.fault("F92")
def test_small_journal(start):
    """A full journal, of which no agent reads, drops the newest sections and counts them."""
    recording = start(journal_rows=2048)
    for _ in range(5000):
        with om.span("work"):
            pass

    kept = len(recording.sections("work"))
    assert 0 < kept < 5000
    assert kept + recording.word(Word.LOST_RING_FULL) == 5000


@pytest.mark.fault("F100")
def test_large_resource(start, monkeypatch, said):
    """Of attributes for which the journal has no room the largest are left out, and named."""
    attributes = {f"small.{i}": "v" * 40 for i in range(20)} | {"large": "x" * 3000}
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", ",".join(map("=".join, attributes.items())))
    monkeypatch.setenv("OTEL_SERVICE_NAME", "s" * 3000)
    recording = start()

    assert recording.reader.meta.resource.keys() == attributes.keys() - {"large"}
    assert recording.reader.meta.service == "s" * 256
    assert said() == [
        "OTEL_RESOURCE_ATTRIBUTES is too long: 1 of 21 attributes are ignored (large)"
    ]


@pytest.mark.fault("F100")
def test_resource_that_is_not_utf8(start, monkeypatch):
    """Bytes of another encoding are replaced: the environment never ends a job."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=\udcfcber,b=1")
    recording = start()

    assert recording.reader.meta.resource == {"team": "\ufffdber", "b": "1"}


@pytest.mark.fault("F100")
def test_long_run_id(start, said):
    """It is cut the same way on every rank, and still tells runs apart."""
    first = start(run_id="job" * 2000).run.id
    om.stop()
    second = start(run_id="job" * 2001).run.id

    assert len(first) == len(second) == 100
    assert first != second
    assert said()[0] == f"the run id has 6,000 characters and is shortened to {first}"


@pytest.mark.fault("F40", "F100")
def test_disk_that_refuses(start, said):
    """A run folder that cannot be written now costs nothing but a word: memory has it."""
    recording = start(dir="/sys/no-disk", run_id="refused")
    with om.span("work"):
        pass
    om.stop()

    assert recording.sections("work")
    assert recording.journal.path.startswith(journal_folder("refused", str(recording.run.path)))
    (sentence,) = said()
    assert sentence.startswith("writing the run folder: ")
    assert "stays in shared memory until an agent, or 'otel-mlperf doctor --recover'," in sentence


@pytest.mark.fault("F58")
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


@pytest.mark.fault("F58")
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
