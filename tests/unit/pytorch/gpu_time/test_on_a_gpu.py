"""A real device gives the same results as the simulated one."""

from __future__ import annotations

import os

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import otel_mlperf as om
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Kind
from otel_mlperf.journal.ring_scan import PayloadParts, rows_of_kind

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture
def run(tmp_path):
    """A run without an agent, on the device that is there."""
    torch.cuda.init()
    with om.start("x", dir=tmp_path, gpu_time_categories="all", agent="none", console=False) as run:
        yield run
    os.unlink(run._recorder.journal.path)


def told(run):
    """GPU time in ms by section name, in order."""
    journal = run._recorder.journal
    reader, parts = JournalReader(journal.path, journal.buffer), PayloadParts()
    entries = reader.new_entries()
    parts.feed(rows_of_kind(reader.take(), Kind.PAYLOAD))
    found = {}
    for content in parts.ready.values():
        for section in content["d"].sections if "d" in content else ():
            name = entries[section.entry][1]
            found.setdefault(name, []).append((section.end - section.begin) / 1e6)
    return found


def train(steps):
    """Work that takes the device some milliseconds a step."""
    a = torch.randn(2048, 2048, device="cuda")
    truth = []
    for _ in range(steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with om.step():
            with om.span("forward"):
                begin.record()
                for _ in range(10):
                    b = a @ a
                end.record()
            float(b.sum())
        truth.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in truth]


def test_gpu_time_is_that_of_events_inside(run):
    """The program's own events right inside a section say the same, to within some µs."""
    truth = train(20)
    for call in run.before_end:
        call()

    found = told(run)["forward"]
    assert len(found) == 20
    for ms, own in zip(found, truth, strict=True):
        assert own <= ms < own + 0.2


def test_nothing_synchronizes(run):
    """As many synchronizing calls as the program makes itself."""

    def calls():
        kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=kinds, acc_events=True) as profiled:  # without: a warning
            train(10)
        events = profiled.events() or ()
        return sum("Synchronize" in event.name for event in events)

    train(2)  # from here on there are stamps
    with_stamps = calls()
    stamps, run._recorder.sections.stamps = run._recorder.sections.stamps, None
    without = calls()
    run._recorder.sections.stamps = stamps
    assert stamps is not None
    assert with_stamps == without


def test_a_graph_is_captured_and_replayed(run):
    """A capture inside sections succeeds, and holds nothing of ours."""
    train(2)
    a, graph = torch.ones(64, device="cuda"), torch.cuda.CUDAGraph()
    with om.step(), om.span("forward"), torch.cuda.graph(graph), om.span("backward"):
        b = a * 2
    with om.step(), om.span("forward"):
        graph.replay()
    torch.cuda.synchronize()
    assert b.sum().item() == 128
