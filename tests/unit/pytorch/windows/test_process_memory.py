"""The number of events of a running profiler is known well enough to stop it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from otel_mlperf.pytorch.windows.capture import Heap

_WINDOWS = """
import json, sys, torch
from otel_mlperf.pytorch.windows.capture import Heap
from otel_mlperf.settings.profile_schedule import Schedule

model, data = torch.nn.Linear(16, 16), torch.randn(4, 16)
for what in json.loads(sys.argv[1]):
    cpu = [torch.profiler.ProfilerActivity.CPU]
    profiler = torch.profiler._KinetoProfile(activities=cpu, **what)
    profiler.start()
    heap = Heap()
    for _ in range(1500):
        model(data).relu().sum().backward()
    estimated = heap.events(Schedule(**what))
    profiler.stop()
    profiler.export_chrome_trace(sys.argv[2])
    with open(sys.argv[2]) as file:
        events = json.load(file)["traceEvents"]
    print(estimated, sum(event["ph"] in "Xi" for event in events))
"""
_GROWTH = """
from otel_mlperf.pytorch.windows.capture import resident_bytes

before = resident_bytes()
block = bytearray(b"x") * 64_000_000
print(resident_bytes() - before, len(block))
"""


def printed(program, *arguments):
    """The numbers that a process of its own prints: pytest's heap is full of other tests."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    return [[int(number) for number in line.split()] for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_events_are_estimated_from_the_heap(tmp_path):
    """To within a factor of two and a half of what the trace turns out to hold."""
    windows = [
        {},
        {"record_shapes": True},
        {"profile_memory": True},
        {"with_stack": True},
        {"record_shapes": True, "profile_memory": True, "with_stack": True},
    ]

    found = printed(_WINDOWS, json.dumps(windows), str(tmp_path / "trace.json"))

    for what, (estimated, recorded) in zip(windows, found, strict=True):
        assert recorded / 2.5 < estimated < recorded * 2.5, what


def test_heap_that_shrinks_has_not_grown():
    """What was freed since counts as nothing, not as an enormous number."""
    block = bytearray(50_000_000)
    heap = Heap()
    del block

    assert heap.growth_bytes() == 0


def test_resident_memory_is_that_of_the_process():
    """It grows by what is written to."""
    [[grown, size]] = printed(_GROWTH)

    assert grown > 0.8 * size
