"""The allocator's state is stored when GPU memory runs out, and the error is left alone."""

from __future__ import annotations

import json
import pickle
import time

import pytest
import torch
from fake_cuda import Account, OutOfMemoryError, fake_torch

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.pytorch.memory.allocator_snapshot import OutOfMemory

TEXT = "CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.fixture
def faked():
    return fake_torch(Account(allocated=7, peak=9, ooms=1))


@pytest.fixture
def run(tmp_path, faked):
    """An active run whose torch is not real."""
    with om.start("x", dir=tmp_path, agent="none", console=False, readings="none") as run:
        run._recorder.sections.at_failure[:] = [OutOfMemory(run._recorder, lambda: faked).failed]
        yield run


def snapshot_of(section):
    attributes = section.extra.attributes if section.extra is not None else None
    return (attributes or {}).get(names.CUDA_MEMORY_SNAPSHOT)


def test_state_is_written_and_named(run, faked, caplog):
    """The first section that the exception leaves names the snapshot, which holds everything."""
    error = OutOfMemoryError(TEXT)
    with (
        pytest.raises(OutOfMemoryError) as raised,
        om.span("outer") as outer,
        om.span("forward") as inner,
    ):
        raise error

    folder = run.path / "memory"
    assert raised.value is error
    assert (snapshot_of(inner), snapshot_of(outer)) == ("memory/0-1.pickle", None)
    assert pickle.loads((folder / "0-1.pickle").read_bytes()) == faked.cuda.snapshot
    text = (folder / "0-1.txt").read_text()
    assert (text[: len(TEXT)], text.rpartition("\n\n")[2]) == (TEXT, "summary of 0")
    facts = json.loads((folder / "0-1.json").read_text())
    assert (facts["error"], facts["rank"], facts["device"]) == (TEXT, 0, 0)
    assert facts["accounts"] == {"0": faked.cuda.accounts[0].nested()}
    assert sum("out of GPU memory" in record.getMessage() for record in caplog.records) == 1


def test_lines_that_hold_most_memory(run, faked):
    """Of what is in use, by the innermost line that is not PyTorch's; with how many pieces."""
    ours = {"filename": "/srv/train.py", "line": 14, "name": "forward"}
    frames = [{"filename": "/v/torch/nn/linear.py", "line": 1, "name": "forward"}, ours]
    state = {"state": "active_allocated", "size": 512}
    blocks = [
        *({**state, "requested_size": 500, "frames": frames} for _ in range(3)),
        {**state, "size": 900, "frames": []},
        {"state": "inactive", "size": 1 << 40, "frames": frames},
    ]
    faked.cuda.snapshot = {"segments": [{"blocks": blocks}], "device_traces": []}
    with pytest.raises(OutOfMemoryError), om.span("forward"):
        raise OutOfMemoryError(TEXT)

    _, head, first, second, *_ = filter(
        None, (run.path / "memory" / "0-1.txt").read_text().split("\n")
    )
    assert head == "Memory in use, by the line that allocated it"
    assert first.strip() == "1,500 bytes in 3: /srv/train.py:14 forward"
    assert second.strip().startswith("900 bytes in 1: unknown")


def test_sections_that_hold_most_memory(run, faked):
    """By when each block was allocated: in a section that has ended, or in one that is open."""
    state, trace = {"state": "active_allocated", "size": 512}, []

    def allocate(address):
        at_us = time.time_ns() // 1_000 + 1
        trace.append({"action": "alloc", "addr": address, "time_us": at_us})
        while time.time_ns() // 1_000 <= at_us:
            pass

    def work():
        for address in (1, 2):
            with om.span("outer"), om.span("embed"):
                allocate(address)
        with om.span("outer"):
            allocate(3)
            with om.span("attention"):
                allocate(4)
                raise OutOfMemoryError(TEXT)

    blocks = [{**state, "address": address} for address in (1, 2, 3, 4, 5)]
    faked.cuda.snapshot = {"segments": [{"blocks": blocks}], "device_traces": [trace]}
    with pytest.raises(OutOfMemoryError):
        work()

    text = (run.path / "memory" / "0-1.txt").read_text().split("\n\n")[1]
    assert text.split("\n") == [
        "Memory in use, by the section in which it was allocated",
        "             1,024 bytes in 2: embed",
        "               512 bytes in 1: attention",
        "               512 bytes in 1: not known",
        "               512 bytes in 1: outer",
    ]


def test_step_and_run(run):
    """A step, or the run itself, names it where the exception crosses no section inside."""
    parents = run._recorder.parents

    def fail():
        nonlocal step
        step = parents.current_step("train").section
        raise OutOfMemoryError(TEXT)

    step = None
    with pytest.raises(OutOfMemoryError), om.step():
        fail()
    with pytest.raises(OutOfMemoryError), run:
        raise OutOfMemoryError(TEXT)

    assert snapshot_of(step) == "memory/0-1.pickle"
    assert snapshot_of(run._section) == "memory/0-2.pickle"


def test_end_of_the_program(run):
    """An exception that ends a program without sections is noted by the run."""
    run._note_failure(OutOfMemoryError(TEXT))

    assert snapshot_of(run._section) == "memory/0-1.pickle"


def test_what_cannot_be_had(run, faked):
    """What a version of torch refuses is left out; the rest is written, and named."""

    def refuse():
        raise RuntimeError("no snapshot")

    faked.cuda.memory._snapshot = refuse
    with pytest.raises(OutOfMemoryError), om.span("forward") as section:
        raise OutOfMemoryError(TEXT)

    assert snapshot_of(section) == "memory/0-1.txt"
    assert sorted(path.name for path in (run.path / "memory").iterdir()) == ["0-1.json", "0-1.txt"]


def test_nowhere_to_write(run):
    """Where nothing can be written the exception goes on as it is."""
    (run.path / "memory").write_text("in the way")
    with pytest.raises(OutOfMemoryError), om.span("forward") as section:
        raise OutOfMemoryError(TEXT)

    assert snapshot_of(section) is None


def test_again_and_again(run):
    """A program that goes on running out of memory leaves eight snapshots, after those before."""
    (run.path / "memory").mkdir()
    (run.path / "memory" / "0-1.pickle").write_bytes(b"of the process before")
    for _ in range(12):
        with pytest.raises(OutOfMemoryError), om.span("forward"):
            raise OutOfMemoryError(TEXT)

    written = sorted((run.path / "memory").glob("*.pickle"))
    assert len(written) == 9
    assert written[0].read_bytes() == b"of the process before"


@pytest.mark.parametrize("error", [KeyError("x"), type("OutOfMemoryError", (Exception,), {})()])
def test_other_errors(run, error):
    """Other exceptions, also of that name, leave nothing."""
    with pytest.raises(type(error)), om.span("forward") as section:
        raise error

    assert snapshot_of(section) is None
    assert not (run.path / "memory").exists()


def test_each_run_looks(tmp_path):
    """A run looks for it by itself."""
    with om.start("x", dir=tmp_path, agent="none", console=False) as run:
        assert len(run._recorder.sections.at_failure) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("with_history", [False, True])
def test_real_device(tmp_path, with_history):
    """A real allocation that fails leaves a snapshot that torch wrote, with its history."""
    torch.ones(1, device="cuda")
    if with_history:
        torch.cuda.memory._record_memory_history()
    try:
        with om.start("x", dir=tmp_path, agent="none", console=False) as run:
            kept = torch.ones(1 << 20, device="cuda")
            with pytest.raises(torch.cuda.OutOfMemoryError), om.span("forward") as section:
                torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)

    found = pickle.loads((run.path / snapshot_of(section)).read_bytes())
    assert any(segment["allocated_size"] >= kept.nbytes for segment in found["segments"])
    assert any(found["device_traces"]) == with_history
    assert "PyTorch CUDA memory summary" in (run.path / "memory" / "0-1.txt").read_text()
