"""The kernels of collectives are counted with what they moved."""

from __future__ import annotations

import pytest
from kineto_traces import event, kernel, launch, operator, write_trace

from otel_mlperf.importing.kernel_source import find_source
from otel_mlperf.report.kernel_tables import render_kernels

SIZED = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000,
         "dtype": "Float", "Group size": 4}  # fmt: skip


def all_reduce(number, duration_us, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", **args):
    """A collective of NCCL as an operator asks for it, an annotation shows it and a kernel does."""
    begin = 1_000 * number
    return [
        operator("record_param_comms", begin, 50, external=number, **args),
        event("nccl:all_reduce", begin + 5, 40, category="user_annotation"),
        launch(begin + 10, 5, number, **{"External id": number}),
        kernel(name, begin + 100, duration_us, number),
    ]


@pytest.fixture
def found(tmp_path):
    def found_in(entries):
        return find_source(str(write_trace(tmp_path / "t.json", entries)), None, None, None)

    return found_in


def test_bus_bandwidth_is_the_bytes_of_the_busiest_link_by_the_time(found):
    """4,000 bytes among 4 ranks are 6,000 on the bus; what has no size is in no bandwidth."""
    entries = [*all_reduce(1, 3, **SIZED), *all_reduce(2, 1, **SIZED), *all_reduce(3, 100)]

    kernels = found(entries)

    figures = {
        (one.operation, one.group_size): (one.calls, one.total_ns, one.bytes, one.bus_bytes_per_s)
        for one in kernels.collective_kernels
    }
    assert figures == {
        ("all_reduce", None): (1, 100_000, None, None),
        ("all_reduce", 4): (2, 4_000, 8_000, 12_000 / 4e-6),
    }
    lines = render_kernels(kernels).splitlines()
    assert not [line for line in lines if "all_reduce ×1" in line]
    assert "comm     all_reduce of 4 ranks ×2: 4.00 µs, 8.00 kB, bus bandwidth 3.00 GB/s" in lines


def test_other_kernels_and_annotations_are_none(found):
    """The annotation around a collective is on the host, and a matrix product moves nothing."""
    annotation = event("nccl:all_reduce", 5, 40, category="user_annotation")

    assert found([annotation, launch(0, 5, 1), kernel("gemm", 10, 5, 1)]).collective_kernels == []
