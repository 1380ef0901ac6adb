"""Each logged value is one row, with its step, and never a wait."""

from __future__ import annotations

import contextlib
import struct
import sys

import numpy as np
import pytest
import torch

import otel_mlperf as om
from otel_mlperf.journal.layout import Kind, Word


def logged(recording):
    """(name, step number, value) of each value row."""
    return [
        (row.name, row.parent, struct.unpack("<d", row.end.to_bytes(8, "little"))[0])
        for row in recording.rows(Kind.VALUE)
    ]


def test_one_row_a_value(recording):
    """Each call stores a row for each value, with the number of its step."""
    for i, _ in enumerate(om.steps([1, 2])):
        om.log(loss=0.5 + i, lr=1e-3)

    assert logged(recording) == [
        ("loss", 0, 0.5),
        ("lr", 0, 1e-3),
        ("loss", 1, 1.5),
        ("lr", 1, 1e-3),
    ]


def test_where_it_was_logged(recording):
    """A value knows the section in which it was logged, and its phase."""
    with om.phase("validate"), om.step(), om.span("score"):
        om.log(accuracy=0.9)

    (row,) = recording.rows(Kind.VALUE)
    assert row.span == recording.one("score").span
    assert row.root == recording.one("validate.step").span
    assert row.phase == "validate"


def test_a_value_without_a_name_is_said_once(recording, said):
    """Whatever it is in each step; a tensor is not read for it."""
    for step in om.steps(range(3)):
        om.log(torch.tensor(0.5 + step))

    assert logged(recording) == []
    assert said() == ["log(): found a Tensor, expected keyword arguments, e.g. loss=0.1"]


def test_outside_steps(recording):
    """Outside steps a value gets the number of the next step."""
    recording.run.step = 7
    om.log(loss=1)

    assert logged(recording) == [("loss", 7, 1.0)]


@pytest.mark.parametrize(
    "value", [2, 2.0, True + 1, np.float32(2), np.int64(2), np.array(2.0), torch.tensor(2.0),
              torch.tensor([2]), torch.tensor(2.0, requires_grad=True),
              torch.tensor(2.0, dtype=torch.bfloat16)]
)  # fmt: skip
def test_kinds_of_numbers(recording, value):
    """Numbers of Python, numpy and torch are taken, with gradients and in any precision."""
    om.log(x=value)

    assert logged(recording) == [("x", 0, 2.0)]


@pytest.mark.parametrize(
    "value",
    ["text", "2", None, [1.0], torch.zeros(3), np.zeros(3), pytest.param(1 << 2000, id="huge")],
)
def test_what_is_no_number(recording, said, value):
    """What is not a single number is left out, and that is said; the others arrive."""
    om.log(bad=value, good=1)

    assert logged(recording) == [("good", 0, 1.0)]
    assert len(said()) == 1


def test_what_is_left_out_is_named(recording, said):
    """Each name that is left out is said once, with what was found."""
    for _ in range(2):
        om.log(loss="text", **{"50%": None})

    assert said() == [
        "log(): loss is a str, expected a number; ignored",
        "log(): 50% is a NoneType, expected a number; ignored",
    ]


def test_meta_tensor(recording):
    """A tensor without content has no value."""
    om.log(x=torch.zeros((), device="meta"))

    assert logged(recording) == []


def test_broken_number(recording):
    """A value whose conversion raises is counted; the others arrive."""

    class Odd:
        def __float__(self):
            raise RuntimeError("no")

    om.log(bad=Odd(), good=1)

    assert logged(recording) == [("good", 0, 1.0)]
    assert recording.word(Word.INTERNAL_ERRORS) == 1
    recording.may_fail = True


class Device:
    """Stands for torch with a device whose copies arrive when the test says so."""

    type = "accelerator"
    float64 = "float64"

    def __init__(self):
        self.slots = {}
        self.is_done = self.is_capturing = False
        self.asked_while_capturing = 0

    def empty(self, *size, **kwargs):
        return self

    def __getitem__(self, slot):
        return Slot(self.slots, slot)

    def no_grad(self):
        return contextlib.nullcontext()

    def get_device_module(self, device):
        return self

    def Event(self):  # noqa: N802 - torch's name
        return self

    def record(self):
        pass

    def query(self):
        self.asked_while_capturing += self.is_capturing
        return self.is_done

    @property
    def cuda(self):
        return self

    def is_current_stream_capturing(self):
        return self.is_capturing


class Slot:
    """One place in pinned memory."""

    def __init__(self, slots, slot):
        self.slots, self.slot = slots, slot

    def copy_(self, tensor, non_blocking):
        assert non_blocking
        self.slots[self.slot] = tensor.value

    def __float__(self):
        return self.slots[self.slot]


class OnDevice:
    """A tensor whose value must not be asked for."""

    def __init__(self, device, value):
        self.device, self.value = device, value

    def numel(self):
        return 1

    def detach(self):
        return self

    def reshape(self, shape):
        return self

    def __float__(self):
        raise AssertionError("this would wait for the device")


@pytest.fixture
def device(monkeypatch):
    found = Device()
    found.Tensor = OnDevice
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


def test_values_of_a_device_come_late(recording, device):
    """A device's values are published when their copies are done, with the step of their call."""
    for i, _ in enumerate(om.steps(range(3))):
        om.log(loss=OnDevice(device, 0.5 + i))
    assert logged(recording) == []

    device.is_done = True
    om.log(last=1)

    assert logged(recording)[:3] == [("loss", i, 0.5 + i) for i in range(3)]


def test_nothing_is_asked_of_a_device_while_a_graph_is_captured(recording, device):
    """A question about a copy that is under way would make the program's capture fail."""
    tensor = OnDevice(device, 1.0)
    om.log(loss=tensor)
    device.type, device.is_capturing = "cuda", True
    om.log(loss=tensor)
    om.log(lr=0.1)
    device.is_capturing, device.is_done = False, True
    om.stop()

    assert device.asked_while_capturing == 0
    assert sorted(logged(recording)) == [("loss", 0, 1.0), ("lr", 0, 0.1)]
    assert recording.word(Word.LOST_VALUES) == 1


def test_values_that_never_arrive(recording, device):
    """What has not arrived when the run ends is counted, after a short wait; so is an overflow."""
    for _ in range(300):
        om.log(loss=OnDevice(device, 1.0))
    om.stop()

    assert recording.word(Word.LOST_VALUES) == 300


def test_broken_device(recording, device):
    """After an error on the device its values are lost and counted; the run ends as ever."""
    recording.may_fail = True
    device.query = lambda: 1 / 0
    with om.span("work"):
        om.log(loss=OnDevice(device, 1.0))
    om.stop()

    assert [row.name for row in recording.sections()] == ["work", "run"]
    assert recording.word(Word.LOST_VALUES) == recording.word(Word.INTERNAL_ERRORS) == 1


@pytest.mark.fault("F52")
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_tensor_is_never_waited_for(recording):
    """A tensor on a busy device is published later, with the step of its call."""
    busy = torch.ones(4096, 4096, device="cuda")
    for i, _ in enumerate(om.steps(range(3))):
        torch.cuda._sleep(50_000_000)
        om.log(loss=(busy[0, 0] + i).sum())
    in_time = len(logged(recording))
    torch.cuda.synchronize()
    om.log(last=1)

    assert in_time < 3
    assert logged(recording)[:3] == [("loss", i, 1.0 + i) for i in range(3)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_tensor_makes_no_synchronisation(recording):
    """Logging a device tensor passes torch's own check for synchronising calls."""
    loss = torch.ones((), device="cuda")
    om.log(loss=loss)
    torch.cuda.set_sync_debug_mode("error")
    try:
        om.log(loss=loss)
        with om.span("forward", loss=loss):
            pass
    finally:
        torch.cuda.set_sync_debug_mode("default")
    om.stop()

    assert logged(recording) == [("loss", 0, 1.0)] * 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_inside_a_cuda_graph(recording):
    """While a graph is captured the value is left out, counted, and the graph stays whole."""
    loss = torch.ones((), device="cuda")
    om.log(loss=loss)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        other = loss * 2
        om.log(loss=other)
    graph.replay()
    om.stop()

    assert recording.word(Word.LOST_VALUES) == 1
    assert logged(recording) == [("loss", 0, 1.0)]
