"""The allocator's state is written on request, and only then."""

from __future__ import annotations

import json
import pickle
import sys

import pytest
from fake_cuda import Account, fake_torch

import otel_mlperf as om
from otel_mlperf.journal.layout import Word


@pytest.fixture
def torch(monkeypatch):
    """A torch that is not real, in its place."""
    faked = fake_torch(Account(allocated=7))
    monkeypatch.setitem(sys.modules, "torch", faked)
    return faked


@pytest.fixture
def run(tmp_path):
    with om.start("x", dir=tmp_path, agent="none", console=False, readings="none") as run:
        yield run


def test_snapshot(torch, run):
    """Each into files of its own, with what was said; the program gets the one to look at."""
    first, second = om.memory_snapshot("after warm-up"), om.memory_snapshot()

    assert (first, second) == (run.path / "memory/0-1.pickle", run.path / "memory/0-2.pickle")
    assert pickle.loads(first.read_bytes()) == torch.cuda.snapshot
    assert first.with_suffix(".txt").read_text() == "after warm-up\n\nsummary of 0"
    facts = json.loads(second.with_suffix(".json").read_text())
    assert facts["error"] == "asked for"
    assert facts["accounts"] == {"0": torch.cuda.accounts[0].nested()}


def test_without_cuda_or_a_run(torch, run):
    """Nobody initialises CUDA for it, and nothing is written."""
    torch.cuda.initialized = False
    without_cuda = om.memory_snapshot()
    torch.cuda.initialized = True
    om.stop()

    assert (without_cuda, om.memory_snapshot()) == (None, None)
    assert not (run.path / "memory").exists()


def test_folder_that_cannot_be_written(torch, run, caplog):
    """The program goes on; it is said what is missing."""
    (run.path / "memory").write_text("in the way")

    assert om.memory_snapshot() is None
    assert "the state of the CUDA allocator cannot be written" in caplog.text
    assert not run._recorder.journal.words[Word.INTERNAL_ERRORS]
