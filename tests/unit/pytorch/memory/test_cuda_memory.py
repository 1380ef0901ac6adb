"""A section reports by how much it made GPU memory grow, and nothing that is not known."""

from __future__ import annotations

import pytest
import torch
from fake_cuda import Account, fake_torch

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.pytorch.memory.cuda_memory import CudaMemory

DELTA, PEAK = names.CUDA_MEMORY_DELTA, names.CUDA_MEMORY_PEAK


@pytest.fixture(autouse=True)
def _run(tmp_path):
    """An active run."""
    with om.start("x", dir=tmp_path, agent="none", console=False, readings="none"):
        yield


def recorded(section):
    return section.extra.attributes if section.extra is not None else None


def test_growth_and_peak():
    """A section that goes higher than anything before has its growth and its peak."""
    account = Account()
    account.allocate(100)
    with om.span("forward") as section, CudaMemory(find_torch=lambda: fake_torch(account)):
        account.allocate(500)
        account.allocate(-200)
        inside = section
        section.set(layer=1)
    assert recorded(inside) == {"layer": 1, DELTA: 300, PEAK: 600}


def test_begin_that_nobody_saw(tmp_path):
    """Where nothing recorded at the begin of a block its growth is not known, and left out."""
    om.stop()
    account = Account()
    account.allocate(100)
    with CudaMemory(find_torch=lambda: fake_torch(account)):
        om.start("late", dir=tmp_path, agent="none", console=False, readings="none")
        section = om.span("forward").__enter__()
        account.allocate(500)
    section.__exit__(None, None, None)
    om.stop()

    assert recorded(section) is None


def test_peak_that_is_not_known():
    """Below a peak from before a section's own is not known, and left out."""
    account = Account(peak=10_000)
    faked = fake_torch(account)
    with om.span("forward") as section, CudaMemory(find_torch=lambda: faked):
        account.allocate(500)
        account.allocate(-500)

    assert recorded(section) == {DELTA: 0}
    assert faked.cuda.resets == 0


def test_peak_that_may_be_reset():
    """Where torch's peak may be reset the section's is always known."""
    account = Account(peak=10_000)
    with (
        om.span("forward") as section,
        CudaMemory(find_torch=lambda: fake_torch(account), reset_peak=True),
    ):
        account.allocate(500)
        account.allocate(-400)

    assert recorded(section) == {DELTA: 100, PEAK: 500}


def test_cuda_that_is_initialised_inside():
    """A section that uses the first GPU memory has all of it as growth."""
    account = Account()
    torch_now = [None, fake_torch(account)]
    with om.span("forward") as section, CudaMemory(find_torch=lambda: torch_now.pop(0)):
        account.allocate(500)

    assert recorded(section) == {DELTA: 500, PEAK: 500}


def test_without_a_gpu():
    """Without CUDA, or without a run, nothing is recorded and nothing fails."""
    with om.span("forward") as section, CudaMemory(find_torch=lambda: None):
        pass
    om.stop()
    with CudaMemory(find_torch=lambda: pytest.fail("asked without a run")):
        pass

    assert recorded(section) is None


def test_exception_passes():
    """An exception inside goes on, and what was allocated until then is recorded."""
    account = Account()

    def fail():
        account.allocate(7)
        raise KeyError

    with (
        pytest.raises(KeyError),
        om.span("forward") as section,
        CudaMemory(find_torch=lambda: fake_torch(account)),
    ):
        fail()

    assert recorded(section) == {DELTA: 7, PEAK: 7}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_real_device():
    """Growth and peak of a real allocation, without waiting for the GPU."""
    torch.ones(1, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        with om.span("forward") as section, om.cuda_memory(reset_peak=True):
            kept = torch.empty(1 << 20, device="cuda")
            torch.empty(1 << 20, device="cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")

    found = recorded(section)
    assert found[DELTA] == kept.nbytes
    assert found[PEAK] == torch.cuda.max_memory_allocated() >= 2 * kept.nbytes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sections_that_are_measured_on_a_real_device():
    """``resources=True`` says of each call what the allocator says, without waiting for the GPU."""
    torch.ones(1, device="cuda")
    at = [measure.key for measure in names.MEASURES].index("cuda_growth_bytes")
    kept, grown, before = [], [], torch.cuda.memory_allocated()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            with om.span("forward", resources=True) as section:
                kept.append(torch.empty(1 << 20, device="cuda"))
            grown.append(section.extra.usage.figures[at])
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert sum(grown) == torch.cuda.memory_allocated() - before == sum(one.nbytes for one in kept)
