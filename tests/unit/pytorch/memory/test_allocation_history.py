"""The history of CUDA allocations is kept on request, and left alone otherwise."""

from __future__ import annotations

import pytest
from fake_cuda import fake_torch

import otel_mlperf as om
from otel_mlperf.pytorch.memory.allocator import AllocationHistory


def test_it_is_kept_from_when_cuda_is_in_use_until_the_end():
    """So many allocations, with stacks of Python; off again afterwards."""
    torch, found = fake_torch(), []
    history = AllocationHistory(5000, lambda: found[0] if found else None)
    history.look()
    assert torch.cuda.history is None
    found.append(torch)
    for _ in range(2):
        history.look()

    assert torch.cuda.history == {"context": "alloc", "stacks": "python", "max_entries": 5000}
    history.finish()
    assert torch.cuda.history is None


def test_what_the_program_keeps_stays_as_it_is():
    """Its own number of entries, and beyond the end of the run."""
    torch = fake_torch()
    torch.cuda.history = {"max_entries": 7}
    history = AllocationHistory(5000, lambda: torch)
    history.look()
    history.finish()

    assert torch.cuda.history == {"max_entries": 7}


def test_a_torch_that_cannot_is_said_once(caplog):
    """The training goes on."""
    torch = fake_torch()
    del torch._C._cuda_isHistoryEnabled
    history = AllocationHistory(5000, lambda: torch)
    for _ in range(2):
        history.look()
    history.finish()

    assert [record.getMessage() for record in caplog.records] == [
        "the history of CUDA memory cannot be recorded: AttributeError: "
        "'types.SimpleNamespace' object has no attribute '_cuda_isHistoryEnabled'"
    ]


@pytest.mark.parametrize("entries", [0, 5000])
def test_the_setting_asks_for_it(tmp_path, entries):
    """A run looks for CUDA at its steps only then."""
    with om.start(
        "x", dir=tmp_path, agent="none", console=False, cuda_memory_history=entries
    ) as run:
        hooks = [getattr(look, "__self__", None) for look in run._recorder.stepping.now_and_then]

    assert any(isinstance(hook, AllocationHistory) for hook in hooks) == bool(entries)
