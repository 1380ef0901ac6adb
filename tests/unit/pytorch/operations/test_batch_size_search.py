"""The largest and the fastest batch size are found, and the program is intact afterwards."""

from __future__ import annotations

import weakref

import pytest
from fake_cuda import Account, fake_torch

import otel_mlperf as om
from otel_mlperf.pytorch.operations.batch_size_search import is_out_of_memory, search

GB = 1_000_000_000


class Device:
    """A device with memory for so many bytes, on which a step takes a fixed time and one a sample.

    Each tensor of a step is an object whose end frees what it held.
    """

    def __init__(self, room: int = 8 * GB) -> None:
        self.account, self.room, self.now = Account(), room, 0.0
        self.torch = fake_torch(self.account)
        self.called: list[int] = []

    def step(self, size: int) -> None:
        self.called.append(size)
        batch = Batch(self.account, size * GB)
        if self.account.allocated > self.room:
            held = [batch]
            held.append(held)  # as graphs do: only a collection frees it
            raise self.torch.cuda.OutOfMemoryError(f"CUDA out of memory of {size}\nmore")
        self.now += 0.1 + 0.01 * size

    def search(self, sizes, repeats=3):
        return search(self.step, sizes, repeats, lambda: self.now, lambda: self.torch.cuda)


class Batch:
    """What is allocated as long as it is held."""

    def __init__(self, account: Account, size: int) -> None:
        account.allocate(size)
        weakref.finalize(self, account.allocate, -size)


def test_the_largest_that_fits_and_the_fastest():
    """Sizes go up until memory ends; larger ones are not tried."""
    device = Device()

    found = device.search([16, 4, 1, 8, 32])

    assert (found.largest, found.best) == (8, 8)
    assert [(trial.size, trial.fits) for trial in found.trials] == [
        (1, True), (4, True), (8, True), (16, False),
    ]  # fmt: skip
    assert found.trials[1].samples_per_s == pytest.approx(4 / 0.14)
    assert found.trials[1].step_s == pytest.approx(0.14)
    assert found.trials[1].peak_bytes == 4 * GB


def test_nothing_is_held_after_memory_ran_out():
    """Batch, exception and cache are gone, so that the program has all of its memory."""
    device = Device()

    found = device.search([4, 16])

    assert device.account.allocated == 0
    assert device.torch.cuda.emptied == 1
    assert found.trials[-1].error == "OutOfMemoryError: CUDA out of memory of 16"


def test_the_device_is_awaited_around_each_timed_step():
    """Before it, so that the one before is not in it; after it, so that all of it is."""
    device = Device()

    device.search([1], repeats=3)

    assert device.called == [1] * 4
    assert device.torch.cuda.awaited == 6


def test_what_the_program_does_wrong_is_its_own():
    """An exception that is not about memory goes on as it is."""

    def step(size):
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="multiplied"):
        om.find_batch_size(step, [1, 2])


def test_memory_of_the_host_ends_it_too():
    """Without a device: PyTorch's allocator for CPUs, and Python's own."""
    words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"

    def step(size):
        if size > 2:
            raise RuntimeError(words)

    assert om.find_batch_size(step, [1, 2, 4]).largest == 2
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_sizes_within_the_noise_are_told():
    """A faster one whose steps differ by more than it is faster is not alone."""
    times = iter([0, 1.0, 1.0, 1.9, 1.9, 3.0, 0, 1.9, 1.9, 3.9, 3.9, 6.0])

    found = search(lambda size: None, [10, 20], 3, lambda: next(times), lambda: None)

    assert found.best == 10
    assert found.as_good == [10, 20]
    assert str(found).splitlines()[-1] == "largest 20, fastest 10 (within the noise: 20)"


def test_the_table():
    """A line for each size; of one that does not fit what was said."""
    assert str(Device().search([4, 16])).splitlines() == [
        "batch size   samples/s      ± %   s/step       peak",
        "         4        28.6       0.0   0.1400    4.00 GB",
        "        16   does not fit: OutOfMemoryError: CUDA out of memory of 16",
        "largest 4, fastest 4",
    ]
    assert str(Device().search([16])).splitlines()[-1] == "no batch size fits"


@pytest.mark.parametrize("sizes", [[], [0, 1], ["8"], [1.5]])
def test_sizes_that_are_none(sizes):
    """They are refused before anything is called."""
    with pytest.raises(ValueError, match="whole numbers of at least 1"):
        om.find_batch_size(lambda size: None, sizes)
    with pytest.raises(ValueError, match="repeats is 0"):
        om.find_batch_size(lambda size: None, [1], repeats=0)
