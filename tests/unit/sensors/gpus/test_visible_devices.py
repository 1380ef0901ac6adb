"""The GPU reported for a rank is the one that CUDA would give it."""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_mlperf.sensors.gpus.gpu import Device, Instance
from otel_mlperf.sensors.gpus.visible_devices import device_of, find_visible

A, B, C, D = "GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"
H100 = "NVIDIA H100"
FOUR = tuple(Device(uuid, number, H100) for number, uuid in enumerate((A, B, C, D)))
MIXED = (Device(A, 0, "NVIDIA T4"), Device(B, 1, H100))
MIG = (
    Device(A, 0, H100),
    Device(B, 1, H100, (Instance("MIG-xx", 1, 0), Instance("MIG-yy", 2, 0))),
)

PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.fault("F75")
@pytest.mark.parametrize(
    ("listed", "visible"),
    [
        (None, [A, B, C, D]),
        ("0", [A]),
        ("2,0", [C, A]),
        (" 3 , 1 ", [D, B]),
        ("1gpu2,2ampere", [B, C]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", [B]),
        ("1,7,2", [B]),
        ("1,,2", [B]),
        ("1,1", []),
        (B, [B]),
        ("GPU-b", [C]),
        ("GPU-c,GPU-aa2", [D, B]),
        ("GPU-aa", []),
        ("GPU-c,GPU-aa,GPU-b", [D]),
        ("GPU-c,GPU-x,GPU-b", [D]),
        ("GPU-c,GPU-cc", []),
        ("GPU-c,1", [D]),
        ("1,GPU-c", [B]),
    ],
)
def test_cuda_visible_devices_in_every_form(listed, visible):
    """Numbers, UUIDs and what they begin with; what names no GPU ends the list."""
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}

    assert find_visible(environ, FOUR) == visible


@pytest.mark.fault("F75")
@pytest.mark.parametrize(
    ("listed", "visible"),
    [
        (None, ["MIG-xx"]),
        ("0", [A]),
        ("1", ["MIG-xx"]),
        ("0,1", ["MIG-xx"]),
        ("MIG-yy", ["MIG-yy"]),
        ("MIG-y", ["MIG-yy"]),
        (f"MIG-{B}/2/0", ["MIG-yy"]),
        ("MIG-yy,MIG-xx", ["MIG-yy"]),
        ("MIG-zz", []),
        (A, [A]),
    ],
)
def test_a_process_sees_one_instance_and_nothing_else(listed, visible):
    """With MIG: by UUID, by the older name, or the first of the GPU that is visible."""
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}

    assert find_visible(environ, MIG) == visible


@pytest.mark.fault("F75")
def test_numbers_say_nothing_where_the_order_is_not_known():
    """GPUs of different models are counted by their speed, unless PCI order is asked for."""
    assert find_visible({}, MIXED) == []
    assert find_visible({"CUDA_VISIBLE_DEVICES": "0"}, MIXED) == []
    assert find_visible({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, MIXED) == []
    assert find_visible({"CUDA_VISIBLE_DEVICES": "0", **PCI}, MIXED) == [A]
    assert find_visible({"CUDA_VISIBLE_DEVICES": B}, MIXED) == [B]


@pytest.mark.fault("F75")
@pytest.mark.parametrize(
    ("let_through", "visible"),
    [
        ("all", [A, B, C, D]),
        ("void", [A, B, C, D]),
        ("2,1", [B, C]),
        (f"{D},{A}", [A, D]),
        ("4,5", [A, B, C, D]),
        ("GPU-elsewhere", [A, B, C, D]),
    ],
)
def test_a_container_shows_its_gpus_in_the_order_of_the_bus(let_through, visible):
    """What the runtime lets through is counted anew; a list of another place changes nothing."""
    environ = {"NVIDIA_VISIBLE_DEVICES": let_through}

    assert find_visible(environ, FOUR) == visible
    assert find_visible(environ | {"CUDA_VISIBLE_DEVICES": "1"}, FOUR) == visible[1:2]


@pytest.mark.fault("F75")
def test_a_rank_uses_the_gpu_of_its_local_rank_or_the_only_one():
    """One GPU each or all for all; a rank beyond the list has no GPU that can be told."""
    assert [device_of(rank, {}, FOUR) for rank in (0, 3, 4, -1)] == [A, D, "", ""]
    assert device_of(3, {"CUDA_VISIBLE_DEVICES": "2"}, FOUR) == C
    assert device_of(1, {"CUDA_VISIBLE_DEVICES": "3,2"}, FOUR) == C
    assert device_of(0, {"CUDA_VISIBLE_DEVICES": ""}, FOUR) == ""
    assert device_of(0, {}, ()) == ""


ENTRIES = st.one_of(
    st.integers(-2, 5).map(str),
    st.sampled_from(
        [A, B, C, D, "GPU-aa", "GPU-b", "GPU-c", "GPU-", "GPU-x", "1gpu2", "x", "", " 2"]
    ),
)


@pytest.mark.fault("F75")
@settings(max_examples=5 * settings.default.max_examples)
@given(st.lists(ENTRIES, max_size=5).map(",".join), st.integers(0, 4))
def test_torch_reads_the_list_in_the_same_way(listed, count):
    """Whatever the variable says, the GPUs are those that torch counts, in its order."""
    devices = FOUR[:count]
    uuids = [device.uuid for device in devices]
    with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": listed}):
        parsed = torch.cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        parsed = torch.cuda._transform_uuid_to_ordinals(parsed, uuids)
    beyond = next((at for at, number in enumerate(parsed) if number >= count), len(parsed))

    visible = find_visible({"CUDA_VISIBLE_DEVICES": listed}, devices)

    assert visible == [uuids[number] for number in parsed[:beyond]]
