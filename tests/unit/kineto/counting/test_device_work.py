"""Is the kind of work told by its name, whoever made the library?"""

from __future__ import annotations

import pytest

from otel_mlperf.kineto.counting.device_work import direction, is_communication


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL(ncclSymkDevArgs*)",
        "void mscclKernel_Sum_float_LL<false>()",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void c10d::(anonymous namespace)::one_shot_all_reduce_kernel<float, 4, 8>(float**)",
        "void deep_ep::intranode::dispatch<8, 768>(int4*)",
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
        ("Memcpy Unknown", "other"),
    ],
)
def test_a_copys_direction_is_in_its_name(name, expected):
    """As CUDA, ROCm and XPU write it."""
    assert direction(name) == expected
