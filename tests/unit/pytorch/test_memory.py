"""Is the number of events that a running profiler holds known well enough to stop it?"""

from __future__ import annotations

import json

import pytest
import torch

from otel_mlperf.pytorch.memory import Heap, resident_bytes
from otel_mlperf.schedule import Schedule

WHAT = [
    {},
    {"record_shapes": True},
    {"profile_memory": True},
    {"with_stack": True},
    {"record_shapes": True, "profile_memory": True, "with_stack": True},
]


@pytest.mark.parametrize("what", WHAT, ids=lambda what: "+".join(what) or "plain")
def test_events_are_estimated_from_the_heap(tmp_path, what):
    """To within a factor of two and a half of what the trace turns out to hold."""
    model, data = torch.nn.Linear(16, 16), torch.randn(4, 16)
    profiler = torch.profiler._KinetoProfile(
        activities=[torch.profiler.ProfilerActivity.CPU], **what
    )
    profiler.start()
    heap = Heap()
    for _ in range(1500):
        model(data).relu().sum().backward()
    estimated = heap.events(Schedule(**what))
    profiler.stop()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    recorded = sum(event["ph"] in "Xi" for event in events)

    assert recorded / 2.5 < estimated < recorded * 2.5


def test_heap_that_shrinks_has_not_grown():
    """What was freed since counts as nothing, not as an enormous number."""
    block = bytearray(50_000_000)
    heap = Heap()
    del block

    assert heap.growth_bytes() == 0


def test_resident_memory_is_that_of_the_process():
    """It grows by what is written to."""
    before = resident_bytes()
    block = bytearray(b"x") * 64_000_000

    assert resident_bytes() - before > 50_000_000
    assert len(block) == 64_000_000
