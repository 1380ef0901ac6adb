"""Element types of tensors: their names and sizes in bytes.

The profiler writes types as C++ names them (``c10::BFloat16``, ``long int``) or as PyTorch's enum
does (``BFloat16``, ``Long``); users know them as ``torch.bfloat16`` and ``torch.int64``.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

_TYPES: Final[dict[str, tuple[int, str]]] = {
    "bool": (1, "bool"),
    "uint8": (1, "byte,unsigned char,uint8_t"),
    "int8": (1, "char,signed char,int8_t"),
    "int16": (2, "short,short int,int16_t"),
    "int32": (4, "int,int32_t"),
    "int64": (8, "long,long int,long long,int64_t"),
    "uint16": (2, "unsigned short"),
    "uint32": (4, "unsigned int"),
    "uint64": (8, "unsigned long"),
    "float16": (2, "half"),
    "bfloat16": (2, ""),
    "float32": (4, "float"),
    "float64": (8, "double"),
    "complex32": (4, "complexhalf,complex<half>"),
    "complex64": (8, "complexfloat,complex<float>"),
    "complex128": (16, "complexdouble,complex<double>"),
    "float8_e5m2": (1, ""),
    "float8_e4m3fn": (1, ""),
    "float8_e5m2fnuz": (1, ""),
    "float8_e4m3fnuz": (1, ""),
    "float8_e8m0fnu": (1, ""),
}
_NAMES: Final = {
    spelling: name
    for name, (_, others) in _TYPES.items()
    for spelling in (name, *others.split(","))
    if spelling
}


def element_type(written: str) -> str:
    """Return the type's name in ``torch``; an unknown type unchanged."""
    return _NAMES.get(written.lower().replace("c10::", ""), written)


def element_bytes(written: str) -> int | None:
    """Return the size of one element in bytes; None if the type is not known."""
    known = _TYPES.get(element_type(written))
    return known[0] if known else None


def count_elements(shape: Any) -> int | None:
    """Count the elements of a shape, or of all in a list of shapes; None if it is not a shape."""
    if not isinstance(shape, list):
        return None
    if all(type(size) is int for size in shape):
        return prod(shape) if all(size >= 0 for size in shape) else None
    counts = [count_elements(inner) for inner in shape]
    return sum(inner for inner in counts if inner is not None) if None not in counts else None
