"""Long names of kernels stay distinguishable in the width of a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mlperf.report.kernel_names import short_name, short_names
from otel_mlperf.terminal_lines import columns

ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3>)"
)
COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
    "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::"
    "{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int, char)"
)
MEAN = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, "
    "float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float>)"
)
GEMV = (
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, true, "
    "cublasGemvParamsEx<int> >(cublasGemvParamsEx<int>)"
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (ADD, "vectorized_elementwise_kernel<CUDAFunctor_add>"),
        (COPY, "elementwise_kernel<direct_copy_kernel_cuda>"),
        (MEAN, "reduce_kernel<MeanOps>"),
        (GEMV, "cublasGemvParamsEx"),
        ("void cudnn::nchwToNhwcKernel<float, (cudnnKernelDataType_t)2>(x)", "nchwToNhwcKernel"),
        ("void cutlass::Kernel2<cutlass_80_gemm_nn>(P)", "cutlass_80_gemm_nn"),
        ("volta_sgemm_32x128_tn", "volta_sgemm_32x128_tn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("ncclDevKernel_AllReduce(ncclDevComm*)", "ncclDevKernel_AllReduce"),
        ("transformers/models/qwen2.py(503): forward", "qwen2.py(503): forward"),
        ("<built-in method relu of type at 0x7d6b77>", "<built-in method relu of type>"),
        ("## forward ##", "## forward ##"),
        ("autograd::engine::evaluate_function: MmBackward0",
         "autograd::engine::evaluate_function: MmBackward0"),
        ("aten::mm", "aten::mm"),
    ],
)  # fmt: skip
def test_a_name_is_its_function_and_what_tells_it_from_others(name, expected):
    """Namespaces, return types, parameters and plain template arguments are left out."""
    assert short_name(name, 60) == expected


def test_the_function_gives_way_to_what_is_in_brackets():
    """Where there is no room, what tells kernels apart stays."""
    assert short_name(ADD, 30) == "vectorized_e…<CUDAFunctor_add>"


def test_names_that_look_alike_are_told_apart():
    """By the words in which they differ."""
    names = [f"void cudnn::bn_bw<float, {size}, true, 1>(float)" for size in (128, 32)]

    assert short_names([*names, "relu"], 30) == ["bn_bw<128>", "bn_bw<32>", "relu"]


def test_equal_names_stay_equal():
    """The same name of two categories differs in nothing."""
    assert short_names(["copy", "copy"], 30) == ["copy", "copy"]


@given(st.text(max_size=60), st.integers(20, 60))
def test_every_name_fits(name, width):
    """Whatever a trace calls its kernels, the table keeps its columns and its lines."""
    found = short_name(name, width)

    assert columns(found) <= width
    assert "\n" not in found


@given(st.text(alphabet="ab<>(){}[]:,-> &*1_", max_size=80), st.integers(20, 60))
def test_unbalanced_brackets_do_no_harm(name, width):
    """A name that was cut, or was never C++, is still shown in its width."""
    assert columns(short_name(name, width)) <= width
