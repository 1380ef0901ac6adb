"""Tests of ``pytorch.memory.mps_memory``; no Mac is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.pytorch.memory.mps_memory import MpsMemory, loaded_mps

MS = 1_000_000


@pytest.fixture
def recorder(tmp_path):
    """That of an active run."""
    with om.start("x", dir=tmp_path, agent="none", console=False, readings="none") as run:
        yield run._recorder


def published(recorder):
    """Value by metric."""
    reader = JournalReader(recorder.journal.path, recorder.journal.buffer)
    entries = reader.new_entries()
    return {entries[int(cell[0])][2]: float(cell.view("f8")[1]) for cell in reader.cells()}


def test_memory_is_published_four_times_a_second(recorder) -> None:
    """What torch has allocated and what the driver has given, as they are by now."""
    sizes = [5 << 20]
    mps = SimpleNamespace(
        current_allocated_memory=lambda: sizes[-1], driver_allocated_memory=lambda: 64 << 20
    )
    memory = MpsMemory(recorder, lambda: mps)

    memory.look(0)
    sizes.append(9 << 20)
    memory.look(249 * MS)
    assert published(recorder) == {
        names.MPS_MEMORY.name: 5 << 20,
        names.MPS_DRIVER_MEMORY.name: 64 << 20,
    }
    memory.look(250 * MS)
    assert published(recorder)[names.MPS_MEMORY.name] == 9 << 20


def test_nothing_is_published_without_mps(recorder) -> None:
    """A machine without it, or a program that has not asked for it, has no such series."""
    MpsMemory(recorder).look(0)

    assert published(recorder) == {}


def test_torch_is_not_asked_for_mps_before_the_program_is() -> None:
    """That would set Metal up in a program that may fork; the answer is torch's own."""
    torch.backends.mps.is_available.cache_clear()
    assert loaded_mps() is None
    assert torch.backends.mps.is_available.cache_info().currsize == 0

    available = torch.backends.mps.is_available()
    assert (loaded_mps() is torch.mps) == available


def test_a_torch_that_answers_otherwise_ends_the_reading(recorder, caplog) -> None:
    """It is said once, and not tried again."""
    asked = []
    memory = MpsMemory(recorder, lambda: asked.append(1) or SimpleNamespace())
    memory.look(0)
    memory.look(1000 * MS)

    assert len(asked) == 1
    assert caplog.text.count("the memory of MPS cannot be read") == 1
