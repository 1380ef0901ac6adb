"""The kind of work is derived from its name, for any library."""

from __future__ import annotations

import pytest
from kineto_traces import event, kernel, write_trace

from otel_mlperf.kineto.counting.device_work import (
    WorkKind,
    count_copies,
    direction,
    find_work,
    is_communication,
)
from otel_mlperf.kineto.reading.trace_reader import read_trace


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL(ncclSymkDevArgs*)",
        "void mscclKernel_Sum_float_LL<false>()",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void c10d::(anonymous namespace)::one_shot_all_reduce_kernel<float, 4, 8>(float**)",
        "void c10d::symmetric_memory::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(float**)",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(void*, int)",
        "multimem_one_shot_all_reduce_kernel",
        "void multimem_all_gather_kernel<16>(char*, char*)",
        "trtllm_allreduce_fusion_kernel_oneshot_lamport",
        "void deep_ep::intranode::dispatch<8, 768>(int4*)",
        "hcom_allReduce__478_0_1",
        "all-reduce-start.2",
        "reduce-scatter.7",
    ],
)
def test_communication_is_known_by_its_function(name):
    """Libraries of all vendors that move data between ranks."""
    assert is_communication(name)


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_nn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ncclThing>>(int)",
        "triton_red_fused_sum_0",
        "void some::kernel<int>(ncclDevComm*)",
        "loop_all-reduce_fusion",
    ],
)
def test_what_only_mentions_communication_computes(name):
    """Template arguments and parameters do not say what a kernel does."""
    assert not is_communication(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "H2D"),
        ("Memcpy DtoH (Device -> Pinned)", "D2H"),
        ("Memcpy DtoD (Device -> Device)", "D2D"),
        ("Memcpy PtoP (Device -> Device)", "P2P"),
        ("Memcpy HtoH (Pageable -> Pageable)", "H2H"),
        ("CopyHostToDevice", "H2D"),
        ("CopyDeviceToHost", "D2H"),
        ("Memcpy M2D(HOST->DEVICE)", "H2D"),
        ("Memcpy D2M(DEVICE->HOST)", "D2H"),
        ("Memset (Device)", "set"),
        ("FillBuffer", "set"),
        ("__amd_rocclr_fillBufferAligned.kd", "set"),
        ("HOST_TO_DEVICE", "H2D"),
        ("device_to_host", "D2H"),
        ("D2D", "D2D"),
        ("Memcpy Unknown", "other"),
    ],
)
def test_a_copys_direction_is_in_its_name(name, expected):
    """As CUDA, ROCm, XPU and MTIA write it."""
    assert direction(name) == expected


@pytest.fixture
def counted(tmp_path):
    """The kinds of work of a trace of these entries, by name, and its copies."""

    def build(*entries):
        trace = read_trace(write_trace(tmp_path / "t.json", entries))
        work = find_work(trace)
        names = [trace.names[name] for name in trace.events.name[work.rows].tolist()]
        kinds = {name: WorkKind(kind) for name, kind in zip(names, work.kind, strict=True)}
        return kinds, count_copies(trace, work)

    return build


def request(start_us, duration_us, **args):
    """A request to the DMA engine of an MTIA, beside its kernels."""
    category = "mtia_ccp_events"
    return event("dma_request", start_us, duration_us, category=category, pid=0, tid=3, **args)


def test_requests_to_a_dma_engine_are_copies(counted):
    """Their ``args`` say where they move how many bytes; what they do not say is not known."""
    kinds, copies = counted(
        request(0, 10, direction="HOST_TO_DEVICE", bytes=4000),
        request(20, 10, direction="HOST_TO_DEVICE", bytes=1000),
        request(40, 5, **{"DMA direction": "D2H", "transfer size": 64}),
        request(50, 3),
        event("matmul", 60, 9, category="mtia_ccp_events", pid=0, tid=3),
    )

    assert kinds == {"dma_request": WorkKind.COPY, "matmul": WorkKind.COMPUTE}
    assert [(copy.direction, copy.count, copy.total_ns, copy.bytes) for copy in copies] == [
        ("H2D", 2, 20_000, 5000),
        ("D2H", 1, 5_000, 64),
        ("other", 1, 3_000, None),
    ]


def test_memsets_are_copies_whatever_their_category(counted):
    """ROCm sets and copies memory by kernels of its own."""
    kinds, copies = counted(
        kernel("__amd_rocclr_fillBufferAligned.kd", 0, 2, 1),
        kernel("__amd_rocclr_copyBuffer.kd", 5, 3, 2),
        event("Memset (Device)", 10, 4, category="gpu_memset", pid=0, tid=7, bytes=128),
        kernel("fill_kernel", 20, 5, 3),
    )

    assert kinds.pop("fill_kernel") == WorkKind.COMPUTE
    assert set(kinds.values()) == {WorkKind.COPY}
    assert [(copy.direction, copy.bytes) for copy in copies] == [
        ("set", 128),
        ("other", None),
        ("set", None),
    ]
