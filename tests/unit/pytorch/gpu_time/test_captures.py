"""No event is queried while another thread captures a graph; captures in real torch are seen."""

from __future__ import annotations

import threading

import pytest
import torch
from fake_cuda import FakeGpu

import otel_mlperf as om
from otel_mlperf.pytorch.gpu_time.captures import Captures, weave_graph
from otel_mlperf.pytorch.gpu_time.gpu_stamps import GpuStamps

MS = 1_000_000


class Graph:
    """As torch.cuda.graph: what it captures is another thread's."""

    def __init__(self, gpu):
        self.gpu = gpu

    def __enter__(self):
        if self.gpu is None:
            raise RuntimeError("no device")
        self.gpu.capturing_elsewhere = True

    def __exit__(self, *failure):
        self.gpu.capturing_elsewhere = False


@pytest.fixture
def captures():
    """Those of the class above, woven anew for each test."""
    enter, leave = Graph.__enter__.__code__, Graph.__exit__.__code__
    found = Captures()
    weave_graph(Graph, found)
    yield found
    Graph.__enter__.__code__, Graph.__exit__.__code__ = enter, leave


def test_nothing_is_asked_while_another_thread_captures(start_gpu, captures):
    """Sections then have no time, for that reason; those before and after have theirs."""
    gpu = FakeGpu()
    run = start_gpu(gpu)
    run.switch._make = lambda recorder, cuda: GpuStamps(recorder, cuda, gpu.clock, 64, captures)
    graph = Graph(gpu)

    def section(ns):
        with om.span("forward"):
            gpu.launch(ns)
            gpu.host(2 * ns)

    with om.step():
        section(MS)
        ends = threading.Event(), threading.Event()
        other = threading.Thread(target=capture, args=(graph, *ends))
        other.start()
        ends[0].wait()
        section(2 * MS)
        ends[1].set()
        other.join()
        section(3 * MS)
    gpu.host(100 * MS)
    om.stop()

    assert [told.ns for told in run.told if told.name == "forward"] == [2 * MS, 6 * MS]
    assert run.missed == {"capture": 1}


def capture(graph, begun, over):
    with graph:
        begun.set()
        over.wait()


def test_a_capture_waits_for_what_is_being_asked(captures):
    """It begins when the stamp is put, not in the middle of it."""
    order, started, graph = [], threading.Event(), Graph(FakeGpu())

    def begin():
        started.set()
        with graph:
            order.append("captured")

    other = threading.Thread(target=begin)
    with captures.lock:
        other.start()
        started.wait()
        order.append("asked")
    other.join()

    assert order == ["asked", "captured"]
    assert captures.threads == set()


def test_a_capture_that_does_not_begin_is_none(captures):
    """Its error is the program's, and events are asked again."""
    with pytest.raises(RuntimeError, match="no device"), Graph(None):
        pass

    assert captures.threads == set()


def test_captures_of_torch_are_seen(monkeypatch):
    """The class of this torch can be woven, and tells before it gives the device anything to do."""
    kind, captures, seen = torch.cuda.graph, Captures(), []
    enter, leave = kind.__enter__.__code__, kind.__exit__.__code__

    def synchronize():
        seen.extend(captures.threads)
        raise RuntimeError("no device")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    weave_graph(kind, captures)
    try:
        with pytest.raises(RuntimeError, match="no device"):
            object.__new__(kind).__enter__()
    finally:
        kind.__enter__.__code__, kind.__exit__.__code__ = enter, leave

    assert seen == [threading.get_ident()]
    assert captures.threads == set()
