"""What a type is called, how large its elements are, and how many a shape has."""

from __future__ import annotations

import pytest

from otel_mlperf.kineto.linking.collectives import count_elements, element_bytes, element_type


@pytest.mark.parametrize(
    ("written", "name", "size"),
    [
        ("Float", "float32", 4),
        ("float", "float32", 4),
        ("c10::BFloat16", "bfloat16", 2),
        ("BFloat16", "bfloat16", 2),
        ("c10::Half", "float16", 2),
        ("long int", "int64", 8),
        ("Long", "int64", 8),
        ("unsigned char", "uint8", 1),
        ("Byte", "uint8", 1),
        ("c10::Float8_e4m3fn", "float8_e4m3fn", 1),
        ("c10::complex<float>", "complex64", 8),
        ("Tomorrow's", "Tomorrow's", None),
    ],
)
def test_types_are_known_by_both_of_their_names(written, name, size) -> None:
    """As C++ and as PyTorch's enum call them; an unknown one keeps its name and has no size."""
    assert element_type(written) == name
    assert element_bytes(written) == size


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ([2, 3], 6),
        ([], 1),
        ([0, 5], 0),
        ([[2, 3], [4]], 10),
        ([-1], None),
        ([True], None),
        ([[2], "x"], None),
        ("[2]", None),
    ],
)
def test_elements_of_a_shape_are_counted(shape, count) -> None:
    """Of a list of tensors all of them; what is no shape has none."""
    assert count_elements(shape) == count
