"""A program gets its current memory, from the kernel and the allocator."""

from __future__ import annotations

import mmap
import resource

from fake_cuda import Account, Cuda

import otel_mlperf as om
from otel_mlperf.recorder.api import memory as module
from otel_mlperf.recorder.core.used_so_far import PAGE_BYTES, Counters

MIB = 1 << 20


def test_memory_is_of_now():
    """What was allocated just before is in it, in the peak too once it is freed; no run needed."""
    before = om.memory()
    held = mmap.mmap(-1, 64 * MIB)
    held.write(b"\1" * (64 * MIB))
    during = om.memory()
    held.close()
    after = om.memory()

    assert during.resident_bytes - before.resident_bytes > 60 * MIB
    assert during.resident_bytes - after.resident_bytes > 60 * MIB
    assert after.peak_bytes >= during.resident_bytes - MIB
    assert after.peak_bytes == resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    assert (after.cuda_allocated_bytes, after.cuda_peak_bytes) == (None, None)


def test_of_the_allocator(monkeypatch):
    """With CUDA in use it has what PyTorch's allocator holds on the current device."""
    cuda = Cuda([Account(allocated=3, peak=5)])
    monkeypatch.setattr(module, "_counters", Counters(find_cuda=lambda: cuda))

    assert om.memory().cuda_allocated_bytes == 3
    assert om.memory().cuda_peak_bytes == 5


def test_what_cannot_be_read_is_absent(tmp_path, monkeypatch):
    """Without the kernel's files nothing is made up, and nothing raised."""
    monkeypatch.setattr(module, "_counters", Counters(str(tmp_path)))

    assert om.memory().resident_bytes is None
    assert om.memory().peak_bytes % PAGE_BYTES == 0
