"""What is known of a collective operation, from whichever of its events says it."""

from __future__ import annotations

import pytest
from kineto_traces import event, kernel, launch, operator, real_traces, write_trace

from otel_mlperf.kineto.linking.collectives import Collective, collectives, parse_operation
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace

ASKED = {
    "Collective name": "_allgather_base",
    "In msg nelems": 1024,
    "Out msg nelems": 4096,
    "Group size": 4,
    "dtype": "BFloat16",
    "Process Group Name": "mesh_dp",
    "Process Group Ranks": "[0, 2, 4, 6]",
    "Seq": 17,
}
GATHERED = {
    "operation": "all_gather",
    "backend": "nccl",
    "group": "mesh_dp",
    "group_size": 4,
    "ranks": (0, 2, 4, 6),
    "in_bytes": 2048,
    "out_bytes": 8192,
    "element_type": "bfloat16",
    "sequence": 17,
}


@pytest.fixture
def found(tmp_path):
    """By name of the event, in a trace of these entries."""

    def build(*entries):
        trace = read_trace(write_trace(tmp_path / "t.json", entries))
        known = collectives(trace, link(trace))
        return {trace.names[trace.events.name[row]]: one for row, one in known.items()}

    return build


def annotation(name, start, duration, **args):
    """A ``user_annotation``."""
    return event(name, start, duration, category="user_annotation", **args)


def test_all_events_of_a_collective_know_what_the_operator_was_asked(found) -> None:
    """The kernel adds its algorithm; kernels that compute are none."""
    known = found(
        operator("record_param_comms", 0, 50, external=1, **ASKED),
        annotation("nccl:_all_gather_base", 5, 40, **{"External id": 2}),
        launch(10, 5, 7, **{"External id": 1}),
        kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)", 60, 90, 7),
        event(
            *("nccl:_all_gather_base", 60, 90),
            category="gpu_user_annotation",
            **{"External id": 2},
        ),
        kernel("gemm", 160, 90, 8),
    )

    assert known == {
        "record_param_comms": Collective(**GATHERED),
        "nccl:_all_gather_base": Collective(**GATHERED),
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)": Collective(
            **GATHERED, algorithm="ring", protocol="ll"
        ),
    }


def test_kernel_without_its_operator_says_what_it_knows(found) -> None:
    """Its own arguments, or only its name; what nobody says is absent."""
    known = found(
        kernel("ncclDevKernel_Generic_4(x)", 60, 90, 7, **ASKED),
        kernel("ncclKernel_AllReduce_TREE_LL128_Sum_float(ncclWorkElem)", 160, 90, 8),
        kernel("ncclDevKernel_SendRecv(x)", 260, 90, 9),
        kernel("ncclDevKernel_Generic_1(x)", 360, 90, 10),
    )

    assert known == {
        "ncclDevKernel_Generic_4(x)": Collective(**GATHERED),
        "ncclKernel_AllReduce_TREE_LL128_Sum_float(ncclWorkElem)": Collective(
            "all_reduce", "nccl", algorithm="tree", protocol="ll128"
        ),
        "ncclDevKernel_SendRecv(x)": Collective("send_recv", "nccl"),
    }


def test_backends_of_the_host_tell_the_size_by_their_shapes(found) -> None:
    """Gloo has an annotation and nothing else."""
    args = {"Input Dims": [[3, 5], []], "Input type": ["float", "Scalar"]}
    known = found(annotation("gloo:all_reduce", 0, 50, **args), annotation("gloo:barrier", 60, 50))

    assert known == {
        "gloo:all_reduce": Collective("all_reduce", "gloo", in_bytes=60, element_type="float32"),
        "gloo:barrier": Collective("barrier", "gloo"),
    }


def test_waiting_and_setting_up_are_no_collectives(found) -> None:
    """They are recorded by the same operator."""
    known = found(
        operator("record_param_comms", 0, 50, **{"Collective name": "wait", "Group size": 2}),
        operator("c10d::Work::wait", 60, 50),
    )

    assert known == {}


@pytest.mark.parametrize(
    ("args", "ranks"),
    [
        ({"Process Group Ranks": "[0, 1]", "Group size": 2}, (0, 1)),
        ({"Process Group Ranks": "[0, 1, ..., 298, 299]", "Group size": 300}, None),
        ({"Global rank start": 1, "Global rank stride": 2, "Group size": 3}, (1, 3, 5)),
        ({"Global rank start": 0, "Global rank stride": 1, "Group size": 1 << 40}, None),
        ({"Process Group Ranks": "[]", "Group size": 2}, None),
        ({"Group size": 2}, None),
    ],
)
def test_ranks_are_there_only_where_all_are_told(found, args, ranks) -> None:
    """PyTorch shortens long lists; some versions give start and stride instead."""
    known = found(operator("record_param_comms", 0, 50, **{"Collective name": "broadcast"}, **args))

    assert known["record_param_comms"].ranks == ranks


def test_damaged_arguments_are_absent(found) -> None:
    """Of a wrong type, negative or of an unknown type of elements: nothing is made up."""
    args = {
        "Collective name": "allreduce",
        "In msg nelems": -5,
        "Out msg nelems": 7,
        "dtype": "Quaternion",
        "Group size": "many",
        "Seq": True,
        "Process Group Ranks": 5,
        "Input type": 3,
    }
    known = found(operator("record_param_comms", 0, 50, **args))

    assert known["record_param_comms"] == Collective("all_reduce", element_type="Quaternion")


@pytest.mark.parametrize(
    ("written", "operation"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_all_gather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("_broadcast_oop", "broadcast"),
        ("reduce", "reduce"),
        ("send", "send"),
        ("recv", "recv"),
        ("barrier", "barrier"),
        ("scatter", "scatter"),
        ("gather", "gather"),
        ("wait", None),
        ("init", None),
        ("coalesced", None),
    ],
)
def test_operations_have_one_name(written, operation) -> None:
    """Whatever the layers of PyTorch and NCCL call them."""
    assert parse_operation(written) == operation


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1),
    ],
)
def test_bus_carries_what_nccls_tests_say(operation, factor) -> None:
    """The factor of four ranks times the larger of given and got."""
    one = Collective(operation, group_size=4, in_bytes=1000, out_bytes=400)

    assert one.message_bytes == 1000
    assert one.bus_bytes == 1000 * factor


def test_bus_is_not_known_without_size_or_group() -> None:
    """Absent, not zero."""
    assert Collective("all_reduce", in_bytes=1000).bus_bytes is None
    assert Collective("broadcast").bus_bytes is None
    assert Collective("all_reduce", group_size=4).message_bytes is None


@pytest.mark.parametrize("path", real_traces())
def test_every_collective_kernel_of_a_recorded_trace_is_described(path) -> None:
    """All that have NCCL in their name; their sizes where the file has them."""
    trace = read_trace(path)
    known = collectives(trace, link(trace))
    numbers = {
        row
        for row, name in enumerate(trace.events.name.tolist())
        if trace.names[name].startswith("ncclKernel_")
    }

    assert numbers <= set(known)
    for row in numbers:
        assert known[row].operation in ("all_reduce", "broadcast")
        assert known[row].algorithm == "ring"
        assert (known[row].message_bytes is None) == ("old_schema" in path.name)
