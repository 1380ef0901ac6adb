"""Does a setting of PyTorch make a backward pass take longer than it must?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf import names

if TYPE_CHECKING:
    from collections.abc import Iterable

_FACTORS: Final = {"MmBackward0": ("self", "mat2"), "AddmmBackward0": ("mat1", "mat2")}
"""What nodes of products call both matrices; of these only shapes and strides are asked."""
_WEIGHT: Final = "TBackward0"
"""What torch.nn.functional.linear does with its weight before the product."""
_SMALLEST: Final = 128
"""Rows or columns below which a product waits for memory: another type makes it no faster."""
_EXACT: Final = "highest"
"""Precision of products at which those of float32 are made in float32."""


def read_costly_settings(nodes: Iterable[Any]) -> dict[names.Metric, int]:
    """By metric what costs time in a pass with these nodes: absent where it is not known."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found = {names.AUTOGRAD_ANOMALY: int(torch.is_anomaly_enabled())}
    if torch.cuda.is_initialized() and (precision := _precision(torch)):
        found[names.GRAPH_FLOAT32] = count_float32(nodes) if precision == _EXACT else 0
    return found


def count_float32(nodes: Iterable[Any], device: str = "cuda") -> int:
    """Floating point operations of products of float32 on such a device, forward and backward.

    Of a matrix of m rows and k columns with one of n columns 2·m·k·n, and as many for each of the
    two that has a gradient. Sparse matrices, small ones, products of batches and convolutions are
    not among them; of a matrix that several ranks share (DTensor) the whole is.
    """
    return sum(_operations(node, device) for node in nodes if node.name() in _FACTORS)


def _operations(node: Any, device: str) -> int:
    (result, *_) = getattr(node, "_input_metadata", None) or (None,)
    if result is None or result.device.type != device or str(result.dtype) != "torch.float32":
        return 0
    first, second = _FACTORS[node.name()]
    above = [function for function, _ in node.next_functions[-2:]]
    # A sparse one has no strides, nor has one without a gradient: there a linear layer is known.
    is_layer = above[1] is not None and above[1].name() == _WEIGHT
    if not is_layer and not getattr(node, f"_saved_{first}_sym_strides"):
        return 0
    rows, inner = getattr(node, f"_saved_{first}_sym_sizes")
    _, columns = getattr(node, f"_saved_{second}_sym_sizes")
    if min(rows, inner, columns) < _SMALLEST:
        return 0
    gradients = sum(function is not None for function in above)
    return int(2 * rows * inner * columns * (1 + gradients))


def _precision(torch: Any) -> str:
    """As the program has set it; empty: in the old way and in the new one, which torch refuses."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return ""
